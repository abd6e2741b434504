"""``reconciler plan -o requests``: the AWS requests that a plan's launches would make."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reconciler.model.errors import CloudError
    from reconciler.plan.make.inputs import Inputs
    from reconciler.plan.value.plan import Plan


def render_requests(plan: Plan, inputs: Inputs) -> str:
    """Return a JSON array of requests in boto3's form, each template before its first fleet.

    A launch that Karpenter would reject before its first request is reported on stderr.

    Raises:
        CloudError: the facts of the cluster are unknown, so launches cannot be requested.
    """
    from reconciler.adapters.aws.launch.requests import RequestRow, once_each, request_rows
    from reconciler.engine.steps.preview import launches_of
    from reconciler.model.errors import CloudError

    rows: list[RequestRow] = []
    failures: list[CloudError] = []
    for launch, blueprint in launches_of(plan, inputs):
        try:
            rows += request_rows(launch, blueprint.instance_type, inputs.settings)
        except CloudError as error:
            failures.append(error)
    if failures and not inputs.settings.cluster_endpoint:
        raise _incomplete(failures)
    for failure in failures:
        print(f"Error: {failure}", file=sys.stderr)
    return json.dumps(once_each(rows), indent=2, sort_keys=True) + "\n"


def _incomplete(failures: Sequence[CloudError]) -> CloudError:
    """Return one error for all launches that cannot be requested, naming what is missing."""
    from reconciler.model.errors import CloudError
    from reconciler.plan.render.wording import counted

    reasons = dict.fromkeys(error.message for error in failures)
    remedies = dict.fromkeys(error.remedy for error in failures if error.remedy)
    return CloudError(
        f"{counted(len(failures), 'launch', 'launches')} cannot be requested: {'; '.join(reasons)}",
        where="-o requests",
        remedy="; ".join(remedies),
    )
