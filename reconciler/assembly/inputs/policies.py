"""Evaluates the policies of the operator, of the base and of the planned revision."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from reconciler.assembly.inputs import operatorfile
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.errors import ReconcilerError, UsageError
from reconciler.model.text.nearest import did_you_mean
from reconciler.plan.policies import binding_policies, judge_policies, with_kept_nodes
from reconciler.plan.render.unknown import changes_nothing, is_cost_unknown, unknown_cost_reason
from reconciler.plan.render.verdicts import full_verdict_of

if TYPE_CHECKING:
    from datetime import datetime

    from reconciler.adapters.cel.paths import UnknownStep
    from reconciler.assembly.inputs.request import FleetRequest
    from reconciler.model.decision.policy import Policy
    from reconciler.plan.make.inputs import Inputs
    from reconciler.plan.value.plan import JudgedPolicy, Plan

UNSCHEDULABLE: Final = "unschedulable"
WARNINGS: Final = "warnings"
NONE: Final = "none"
"""Nothing in addition to policies, for a caller that fails on more by default."""

_KEPT: Final = "with the present nodes, which the change keeps from being consolidated"
_FIELD_HINT: Final = "schemas/plan.v1.json lists the fields of a plan"


def operator_policies(request: FleetRequest, files: Sequence[str]) -> tuple[Policy, ...]:
    """Return the policies in ``files``, those of ``--policy``, and in the operator's configuration.

    Raises:
        UsageError: a file of the operator lies in the fleet's repository or is not valid, or two
            policies of the operator have the same name.
        UnreadableError: a file cannot be read.
    """
    folder = None if request.repo is not None else request.path or "."
    policies = [policy for file in files for policy in operatorfile.read_policies(file, folder)]
    settings = operatorfile.read_operator_file(request.config, folder)
    policies += settings.policies if settings is not None else ()
    _expect_distinct(policies)
    return tuple(policies)


def policies_of(operator: Sequence[Policy], inputs: Inputs) -> tuple[Policy, ...]:
    """Return the policies for a plan of ``inputs``, with those of the operator."""
    return binding_policies((*operator, *inputs.base_policies, *inputs.fleet.policies))


def _expect_distinct(policies: Sequence[Policy]) -> None:
    seen: dict[str, Policy] = {}
    for policy in policies:
        first = seen.setdefault(policy.name, policy)
        if first is not policy:
            message = f'duplicate policy "{policy.name}", first defined at {first.place}'
            raise UsageError(message, where=str(policy.place), remedy="rename or remove one")


def judge(plan: Plan, policies: Sequence[Policy], now: datetime) -> Plan:
    """Return the plan with the verdict of each policy.

    ``now`` decides which exemptions have expired. It is not the time of the plan, which the author
    of a commit chooses.

    Raises:
        UsageError: an expression does not compile, or has no value for this plan.
        UnreadableError: an expression reached a limit.
    """
    if not policies:
        return plan
    from reconciler.adapters.cel.fields import reads_cost
    from reconciler.adapters.cel.sandbox import evaluate
    from reconciler.plan.approval import encode_saved_plan

    if is_cost_unknown(plan) and not changes_nothing(plan):
        why = unknown_cost_reason(plan)
        policies = [_failing(one, why) if reads_cost(one.expression) else one for one in policies]
    answers = evaluate(policies, encode_saved_plan(plan), now)
    judged = judge_policies(policies, answers, now)
    kept = with_kept_nodes(plan)
    if kept is None:
        return replace(plan, policies=judged)
    on_cost = [policy for policy in policies if reads_cost(policy.expression)]
    answers = evaluate(on_cost, encode_saved_plan(kept), now)
    found = {one.name: one for one in judge_policies(on_cost, answers, now)}
    return replace(plan, policies=tuple(_stricter(one, found.get(one.name)) for one in judged))


def _stricter(judged: JudgedPolicy, kept: JudgedPolicy | None) -> JudgedPolicy:
    """Return the verdict on a change, or else that on the present nodes that it keeps."""
    if kept is None or kept.result == "passed" or judged.result == "failed":
        return judged
    if judged.result == kept.result:
        return judged
    return replace(kept, message=f"{kept.message} ({_KEPT})")


def _failing(policy: Policy, why: str) -> Policy:
    """Return a policy on a cost that is not known: it is violated, unless it is exempted."""
    from dataclasses import replace

    message = f"the cost is not known: {why}"
    return replace(policy, expression="false", message=message, message_expression="")


def unknown_policy(fail_on: Collection[str], names: Iterable[str]) -> UsageError | None:
    """Return the error for a name in ``--fail-on`` that is not one of these policies'."""
    known = [UNSCHEDULABLE, WARNINGS, NONE, *names]
    for name in sorted(fail_on):
        if name not in known:
            remedy = did_you_mean(name, known, f"use {', '.join(known[:3])} or a policy's name")
            message = f'there is no policy "{name}"'
            return UsageError(message, where="--fail-on", remedy=remedy)
    return None


def blocking_policies(plan: Plan, fail_on: Collection[str]) -> list[JudgedPolicy]:
    """Return the failed policies that block the plan: errors, and those named by ``--fail-on``."""
    return [
        policy
        for policy in plan.policies
        if policy.result == "failed"
        and (policy.forbids or policy.name in fail_on or WARNINGS in fail_on)
    ]


def place_of(policy: JudgedPolicy) -> str:
    """Return where the expression of a policy is written."""
    return f"{policy.file}:{policy.line}:{policy.column}"


def compile_findings(policies: Sequence[Policy]) -> list[Diagnostic]:
    """Return a finding for each policy with an expression that does not compile."""
    from reconciler.adapters.cel.sandbox import compile_errors

    try:
        found = compile_errors(policies)
    except ReconcilerError as error:
        severity = Severity.ERROR
        if isinstance(error, UsageError):  # the package is missing; the policies may be right
            severity = Severity.WARNING
        place = policies[0].place
        return [Diagnostic(severity, "unchecked-policy", error.message, place, hint=error.remedy)]
    return [
        Diagnostic(Severity.ERROR, "bad-expression", error.message, place, hint=error.remedy)
        for place, error in found
    ]


def field_findings(
    policies: Sequence[Policy], sources: Mapping[str, bytes]
) -> Iterator[Diagnostic]:
    """Yield a finding for each field of an expression that does not exist in a plan.

    A field that the expression tests with ``has()`` may be one of another release: that is only a
    warning. ``sources`` are the contents of the files by path.
    """
    from reconciler.adapters.cel.fields import unknown_fields
    from reconciler.adapters.cel.sandbox import parts_of

    for policy in policies:
        for part, text, place in parts_of(policy):
            for step in unknown_fields(text):
                where = _place_of_field(sources.get(place.file, b""), place, text, step)
                yield Diagnostic(
                    Severity.WARNING if step.is_tested else Severity.ERROR,
                    "unknown-plan-field",
                    f'policy {policy.name}: {part}: {step.owner} has no field "{step.name}"',
                    where,
                    hint=did_you_mean(step.name, step.siblings, _FIELD_HINT),
                )


def _place_of_field(content: bytes, place: Place, text: str, unknown: UnknownStep) -> Place:
    """Return the place of an unknown field in the file; that of the expression if not found there.

    YAML may fold lines and escape quotes, but leaves names as they are, so names are counted.
    """
    import re

    name = re.compile(rf"\b{re.escape(unknown.name)}\b")
    before = len(name.findall(text[: unknown.offset]))
    lines = content.decode(errors="replace").splitlines()
    for number, line in enumerate(lines[place.line - 1 :], place.line):
        begin = place.column - 1 if number == place.line else 0
        for match in name.finditer(line, begin):
            if not before:
                return Place(place.file, number, match.start() + 1)
            before -= 1
    return place


def diagnostics_of(plan: Plan) -> tuple[Diagnostic, ...]:
    """Return the findings of a plan and of its policies, for annotations and code scanning.

    The place of a policy of the operator is not in the repository, and is left out.
    """
    found = (
        Diagnostic(
            Severity(one.severity),
            one.code,
            one.message,
            _place(one.file, one.line, one.column),
            one.path or "",
            one.hint or "",
        )
        for one in plan.diagnostics
    )
    of_policies = map(_policy_diagnostic, plan.policies)
    return (*found, *(diagnostic for diagnostic in of_policies if diagnostic is not None))


def _policy_diagnostic(policy: JudgedPolicy) -> Diagnostic | None:
    """Return the finding of a policy, None if it passed."""
    if policy.result == "passed":
        return None
    severity = Severity(policy.severity) if policy.result == "failed" else Severity.INFO
    file = "" if policy.source == "operator" else policy.file
    message = f"policy {policy.name}: {full_verdict_of(policy)}"
    place = _place(file, policy.line, policy.column)
    return Diagnostic(severity, f"policy-{policy.name}", message, place)


def _place(file: str | None, line: int | None, column: int | None) -> Place | None:
    return Place(file, line or 1, column or 1) if file else None
