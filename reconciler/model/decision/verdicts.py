"""The answer of a policy about a plan, with the values that it has compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from reconciler.model.decision.part import Part

Scalar = str | int | float | bool


class ComparedValue(Part, frozen=True):
    """A value of the plan that a violated policy has compared; ``path`` is within the plan.

    Of a list there is the ``count`` of its entries. If the policy is about each of them,
    ``violating`` counts those that violate it, and ``names`` are the first of them. ``operator``
    and ``limit`` are the comparison that does not hold, where it is one with a literal.
    """

    path: str
    value: Scalar | None = None
    count: int | None = None
    violating: int | None = None
    names: tuple[str, ...] = ()
    operator: str = ""
    limit: Scalar | None = None

    left_out: ClassVar = ("value", "count", "violating", "names", "operator", "limit")


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """Whether a plan complies with a policy; if not, the message, and what exempts the plan.

    ``exempted`` has an entry for each exemption of the policy: whether it is for this plan.
    ``values`` are those that the policy has compared.
    """

    holds: bool
    message: str = ""
    exempted: tuple[bool, ...] = ()
    values: tuple[ComparedValue, ...] = ()
