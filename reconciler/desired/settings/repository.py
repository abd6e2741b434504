"""Settings that a repository may not set, because it comes with a pull request.

Only the operator controls where credentials go, and which programs run.
"""

from __future__ import annotations

import re
from typing import Final

from reconciler.desired.settings.keys import environment_name

OPERATOR_ONLY: Final = frozenset(
    {
        "aws.endpointUrl",
        "aws.externalId",
        "aws.roleArn",
        "kubernetes.context",
        "kubernetes.kubeconfig",
        "notifications.webhooks",
    }
)
"""Settings that a repository may not set at all; ``state`` may only be a folder of its own."""


def misplaced(key: str, value: object) -> str:
    """Return why a repository may not set ``key`` to ``value``, empty if it may."""
    if key in OPERATOR_ONLY:
        return "can be set only by the operator: it controls where credentials go or what runs"
    if key == "state" and isinstance(value, str):
        if "://" in value:
            return "can be a server only if the operator sets it: it controls where credentials go"
        if value.startswith(("/", "~", "\\")) or ".." in re.split(r"[/\\]", value):
            return "is outside the fleet folder; only the operator can set that"
    return ""


def remedy_of_misplaced(key: str) -> str:
    """Return where the operator can set what a repository may not."""
    return (
        f"remove it here; use --set {key}=VALUE, {environment_name(key)}, or the operator's "
        "configuration file (--config FILE or RECONCILER_CONFIG)"
    )
