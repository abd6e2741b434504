"""Which policies judge a plan, and their verdicts.

A revision must not weaken the policies that judge it. If policies have the same name, the
operator's takes precedence over that of the base, and that of the base over that of the planned
revision, with its exemptions. A revision can therefore only add policies, until it is merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from reconciler.model.billing import HOURS_A_MONTH
from reconciler.model.decision.policy import Exemption, Policy, PolicySource
from reconciler.model.decision.verdicts import PolicyAnswer
from reconciler.plan.value.plan import JudgedPolicy, Plan, PlannedExemption
from reconciler.plan.value.ranges import cost_difference, fleet_range

_RANK: Final = {PolicySource.OPERATOR: 0, PolicySource.BASE: 1, PolicySource.HEAD: 2}


def binding_policies(policies: Iterable[Policy]) -> tuple[Policy, ...]:
    """Return the policies that judge a plan: one for each name, in order of the names."""
    chosen: dict[str, Policy] = {}
    for policy in sorted(policies, key=lambda p: (p.name, _RANK[p.source])):
        chosen.setdefault(policy.name, policy)
    return tuple(chosen.values())


def judge_policies(
    policies: Sequence[Policy], answers: Sequence[PolicyAnswer], now: datetime
) -> tuple[JudgedPolicy, ...]:
    """Return the verdict of each policy, given its answer."""
    pairs = zip(policies, answers, strict=True)
    return tuple(_judge_policy(policy, answer, now) for policy, answer in pairs)


def with_kept_nodes(plan: Plan) -> Plan | None:
    """Return the plan with the present nodes as what its change leads to, if it keeps them.

    A change that stops the consolidation of present nodes costs what these cost, although it costs
    nothing between fleets in steady state. A policy on cost has to hold for both.
    """
    change = plan.at_rest
    if change is None or change.kept is None or change.kept_per_hour is None:
        return None
    per_hour = round(change.kept_per_hour, 9)
    kept = replace(
        change,
        after=change.kept,
        per_hour=per_hour,
        per_month=round(per_hour * HOURS_A_MONTH, 9),
        range=None if change.range is None else fleet_range([change.kept]),
        difference=None if change.difference is None else cost_difference([per_hour]),
        kept=None,
    )
    return replace(plan, at_rest=kept)


def _judge_policy(policy: Policy, answer: PolicyAnswer, now: datetime) -> JudgedPolicy:
    exemption = None if answer.holds else _exemption(policy, answer, now)
    is_exempted = exemption is not None and not exemption.expired
    place = policy.place
    return JudgedPolicy(
        name=policy.name,
        severity="error" if policy.severity == "error" else "warning",
        result="passed" if answer.holds else "exempted" if is_exempted else "failed",
        message="" if answer.holds else _message(policy, answer),
        source=policy.source.value,
        file=place.file,
        line=place.line,
        column=place.column,
        exemption=exemption,
        values=answer.values,
    )


def _message(policy: Policy, answer: PolicyAnswer) -> str:
    if policy.message_expression:
        return answer.message
    return policy.message or f"not true: {' '.join(policy.expression.split())}"


def _exemption(policy: Policy, answer: PolicyAnswer, now: datetime) -> PlannedExemption | None:
    """Return the exemption that lasts longest among those that apply, expired or not."""
    pairs = zip(policy.exemptions, answer.exempted, strict=True)
    applying = [exemption for exemption, applies in pairs if applies]
    if not applying:
        return None
    chosen: Exemption = max(applying, key=lambda e: (e.expires, e.owner))
    return PlannedExemption(
        owner=chosen.owner,
        expires=chosen.expires,
        expired=chosen.expires <= now,
        reason=chosen.reason,
    )
