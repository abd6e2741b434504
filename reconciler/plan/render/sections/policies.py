"""The policies of a plan: the violated ones first, and the others folded."""

from __future__ import annotations

from collections import Counter
from typing import Final

from reconciler.model.text.counting import format_count
from reconciler.plan.render.verdicts import compared_values, verdict_of
from reconciler.plan.value.plan import JudgedPolicy, Plan
from reconciler.render.cells import Column, Line, Name, Section, SectionRow, Text, Tone

_SOURCES: Final = {
    "operator": "the operator",
    "base": "the base revision",
    "head": "this revision",
}


def violated_policies(plan: Plan) -> Section | None:
    """Return the policies that the plan violates, those that forbid it first."""
    failed = [policy for policy in plan.policies if policy.result == "failed"]
    if not failed:
        return None
    failed.sort(key=lambda policy: not policy.forbids)
    forbidding = sum(policy.forbids for policy in failed)
    note = f"{format_count(len(failed), 'policy', 'policies')} violated"
    return Section(
        key="policies",
        title="Policies:",
        note=note,
        columns=(Column("policy"), Column("result"), Column("set by")),
        rows=tuple(map(_policy_row, failed)),
        lines_title="message",
        tone="bad" if forbidding else "warn",
    )


def other_policies(plan: Plan) -> Section | None:
    """Return the policies that the plan complies with, and those that it is exempted from."""
    others = [policy for policy in plan.policies if policy.result != "failed"]
    if not others:
        return None
    counts = Counter(policy.result for policy in others)
    is_all = len(others) == len(plan.policies)
    return Section(
        key="policies-kept",
        title="Policies:" if is_all else "Other policies:",
        note=", ".join(f"{number} {result}" for result, number in sorted(counts.items())[::-1]),
        columns=(Column("policy"), Column("result"), Column("set by")),
        rows=tuple(map(_policy_row, others)),
        lines_title="message",
        folded=all(policy.result == "passed" for policy in others),
    )


def _policy_row(policy: JudgedPolicy) -> SectionRow:
    failed = policy.result == "failed"
    texts = () if policy.result == "passed" else (verdict_of(policy), compared_values(policy))
    tone: Tone = "soft" if policy.result == "passed" else ""
    return SectionRow(
        verb=policy.severity if failed else "",
        cells=(
            Name(policy.name),
            Text("violated" if failed else policy.result, tone),
            Text(_SOURCES[policy.source], "soft"),
        ),
        lines=tuple(Line(cells=(Text(text),)) for text in texts if text),
    )
