"""Long polls of SQS: moto waits inside the call, and nobody else is answered meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from reconciler.adapters.simulated.wire import Request

_GLANCE_S: Final = 0.02


def awaited(request: Request, has_messages: Callable[[str], bool]) -> Request:
    """Wait as long as a ReceiveMessage asks to, and return the call as one that does not wait.

    ``has_messages`` says of a queue, by its name, whether there is something to be received. The
    wait is on the machine's clock, as it is for whoever calls.
    """
    if request.operation != "ReceiveMessage":
        return request
    parameters = json.loads(request.body)
    name = str(parameters.get("QueueUrl", "")).rpartition("/")[2]
    deadline = time.monotonic() + int(parameters.get("WaitTimeSeconds") or 0)
    while time.monotonic() < deadline and not has_messages(name):
        time.sleep(_GLANCE_S)
    body = json.dumps({**parameters, "WaitTimeSeconds": 0}).encode()
    headers = {k: v for k, v in request.headers.items() if k.lower() != "content-length"}
    return replace(request, body=body, headers=headers)
