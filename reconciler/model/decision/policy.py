"""Policies: rules over a plan, who set them, and the exceptions that were agreed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from reconciler.model.diagnostics import Place


class PolicySource(StrEnum):
    """Who set a policy. A revision cannot change the policies of the operator and of its base."""

    OPERATOR = "operator"
    BASE = "base"
    HEAD = "head"


class PolicySeverity(StrEnum):
    """Whether a policy that a plan violates forbids the plan."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Exemption:
    """An agreed exception: ``owner`` is responsible for it, and it ends at ``expires``.

    ``when`` is a CEL expression over the plan; if it is empty, the exemption applies to all plans.
    """

    owner: str
    expires: datetime
    reason: str = ""
    when: str = ""
    when_at: Place | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """A rule over the JSON of a plan: ``expression`` is CEL that is true if the plan complies.

    ``message_expression`` is CEL with the message as its value; if it is empty, ``message`` is
    used, and without that the expression. ``place`` is that of the expression.
    """

    name: str
    expression: str
    place: Place
    message: str = ""
    message_expression: str = ""
    message_at: Place | None = None
    severity: PolicySeverity = PolicySeverity.ERROR
    exemptions: tuple[Exemption, ...] = ()
    source: PolicySource = PolicySource.HEAD
