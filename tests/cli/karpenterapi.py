"""The API of a cluster that Karpenter runs: lists of objects on a port of this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.httpserver import QuietHandler, serving_with

Lists = dict[str, list[dict[str, Any]] | dict[str, Any] | int]
"""Path of a list → its objects, the complete answer, or the HTTP status of a refusal."""


@contextmanager
def serving(lists: Lists) -> Iterator[str]:
    """Serve the lists while the block runs, and yield the URL."""

    class Handler(QuietHandler):
        def answer(self) -> None:
            answer: dict[str, Any]
            url = urlsplit(self.path)
            found = lists.get(url.path, 404)
            name = parse_qs(url.query).get("fieldSelector", [""])[0].removeprefix("metadata.name=")
            if isinstance(found, int):
                status, answer = found, {"kind": "Status", "reason": "Refused", "message": url.path}
            elif isinstance(found, dict):
                status, answer = 200, found
            else:
                items = [o for o in found if not name or o["metadata"]["name"] == name]
                status, answer = 200, {"kind": "List", "metadata": {}, "items": items}
            self.reply(status, json.dumps(answer).encode())

    with serving_with(Handler) as url:
        yield url
