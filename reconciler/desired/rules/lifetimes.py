"""How long nodes live: durations that are valid, and that an operator rarely wants.

Karpenter takes all of them. A node that expires within minutes evicts its pods outside of budgets
again and again, a short grace period ends the protection of PodDisruptionBudgets, and a node that
expires before it is consolidated is never consolidated.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from reconciler.model.diagnostics import Severity
from reconciler.model.duration import parse_nillable
from reconciler.model.json import JsonDict
from reconciler.source.document import Pointer
from reconciler.source.finding import Finding
from reconciler.source.schema import value_at

SHORT_LIFE: Final = timedelta(hours=1)
"""Below it, nodes are replaced faster than a rollout of a fleet ends."""
SHORT_GRACE: Final = timedelta(minutes=1)
"""Below it, most pods have no time to end: their own grace period is 30 seconds by default."""
_DEFAULT_LIFE: Final = "720h"
_LIFE: Final[Pointer] = ("spec", "template", "spec", "expireAfter")
_GRACE: Final[Pointer] = ("spec", "template", "spec", "terminationGracePeriod")
_DELAY: Final[Pointer] = ("spec", "disruption", "consolidateAfter")

_SHORT_TEXT: Final = "1h"


def check_lifetimes(data: JsonDict) -> Iterator[Finding]:
    """Yield a warning for each duration of a NodePool that defeats its own purpose."""
    life, grace, delay = (_duration(data, at) for at in (_LIFE, _GRACE, _DELAY))
    if life is not None and life < SHORT_LIFE:
        text = value_at(data, _LIFE)
        message = (
            f"every node is replaced {text} after its launch, whatever its budgets allow, and its "
            "pods are evicted each time"
        )
        hint = f"write at least {_SHORT_TEXT}, such as {_DEFAULT_LIFE}, or Never"
        yield Finding("short-expiry", _LIFE, message, hint, Severity.WARNING)
    if grace is not None and grace < SHORT_GRACE:
        text = value_at(data, _GRACE)
        message = (
            f"a drain ends after {text}: pods are then deleted without regard to "
            "PodDisruptionBudgets, do-not-disrupt and their own grace periods"
        )
        hint = "write a time in which the pods can move, such as 1h"
        yield Finding("short-grace-period", _GRACE, message, hint, Severity.WARNING)
    is_static = value_at(data, ("spec", "replicas")) is not None
    if not is_static and life is not None and delay is not None and delay >= life:
        text = value_at(data, _LIFE) or f"{_DEFAULT_LIFE}, the default"
        message = f"no node is consolidated: it expires before (expireAfter is {text})"
        hint = "write a shorter time, or Never if that is meant"
        yield Finding("idle-consolidation", _DELAY, message, hint, Severity.WARNING)


def _duration(data: JsonDict, at: Pointer) -> timedelta | None:
    """Return a duration, None if it is not set, ``Never`` or invalid."""
    try:
        return parse_nillable(value_at(data, at) or (_DEFAULT_LIFE if at == _LIFE else None))
    except (TypeError, ValueError):
        return None  # the schema reports it
