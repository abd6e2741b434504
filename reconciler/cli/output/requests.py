"""``reconciler plan -o requests``: the AWS requests that a plan's launches would make."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reconciler.plan.make.inputs import Inputs
    from reconciler.plan.value.plan import Plan


def render_requests(plan: Plan, inputs: Inputs) -> str:
    """Return a JSON array of requests in boto3's form, each template before its first fleet.

    A launch that would fail before its first request is told on stderr.
    """
    from reconciler.adapters.aws.launch.requests import RequestRow, once_each, request_rows
    from reconciler.engine.steps.preview import launches_of
    from reconciler.model.errors import CloudError

    rows: list[RequestRow] = []
    for launch, blueprint in launches_of(plan, inputs):
        try:
            rows += request_rows(launch, blueprint.instance_type, inputs.settings)
        except CloudError as error:
            print(f"Error: {error}", file=sys.stderr)
    return json.dumps(once_each(rows), indent=2, sort_keys=True) + "\n"
