"""Starts the process that evaluates expressions, and limits its resources.

An expression of a few lines can need more time and memory than there is: macros over lists nest,
and `x + x` doubles. A static check cannot tell such an expression from a useful one, so another
process evaluates it, with limits on time and memory. That process has no environment, no files and
no credentials; CEL itself gives an expression no access to the machine.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from datetime import datetime
from importlib.util import find_spec
from typing import Final

from reconciler.adapters import processes
from reconciler.model.decision.policy import Policy, PolicySource
from reconciler.model.decision.verdicts import ComparedValue, PolicyAnswer
from reconciler.model.diagnostics import Place
from reconciler.model.errors import UnreadableError, UsageError
from reconciler.model.json import JsonDict

CPU_SECONDS: Final = 10
"""How long the policies of a small plan may be evaluated, all together."""
_BYTES_PER_SECOND: Final = 500_000
"""For how much JSON of a plan there is one more second."""
_WALL_S: Final = 300
_MEMORY: Final = 2**30
_MEMORY_PER_BYTE: Final = 40
"""Bytes of memory for each byte of the plan: decoded JSON is an order of magnitude larger."""
_EVALUATOR: Final = os.path.join(os.path.dirname(__file__), "evaluator.py")


def evaluate(policies: Sequence[Policy], plan: bytes, now: datetime) -> list[PolicyAnswer]:
    """Return the answer to each policy for a plan in JSON.

    Raises:
        UsageError: an expression does not compile, or the package that evaluates is missing.
        UnreadableError: an expression has no value for this plan, or reached a limit.
    """
    answers = _ask_evaluator(policies, plan, now)
    for policy, answer in zip(policies, answers, strict=True):
        if "error" in answer:
            raise _expression_error(policy, answer)
    is_violated = any(not answer["holds"] for answer in answers)
    facts = json.loads(plan) if is_violated else {}
    return [
        PolicyAnswer(
            answer["holds"],
            answer["message"],
            tuple(answer["exempted"]),
            () if answer["holds"] else _compared_values(policy, answer, facts),
        )
        for policy, answer in zip(policies, answers, strict=True)
    ]


def _compared_values(policy: Policy, answer: JsonDict, plan: JsonDict) -> tuple[ComparedValue, ...]:
    """Return the values of the plan that a violated policy has compared."""
    from reconciler.adapters.cel.values import find_values, violation_counts

    violations = answer.get("violating")
    found = find_values(policy.expression, plan)
    return (
        found if violations is None else (violation_counts(policy.expression, violations), *found)
    )


def compile_errors(policies: Sequence[Policy]) -> list[tuple[Place, UsageError]]:
    """Return an error for each policy with an expression that does not compile, and its place.

    Raises:
        UsageError: the package that evaluates is missing.
        UnreadableError: an expression reached a limit.
    """
    answers = _ask_evaluator(policies, b"null", None)
    pairs = zip(policies, answers, strict=True)
    return [
        (_place_of(policy, answer["part"]), _expression_error(policy, answer))
        for policy, answer in pairs
        if "error" in answer
    ]


def _ask_evaluator(policies: Sequence[Policy], plan: bytes, now: datetime | None) -> list[JsonDict]:
    if not policies:
        return []
    if find_spec("cel") is None:
        from reconciler.installation import install_remedy

        raise UsageError(
            "policies need the package common-expression-language",
            where=str(policies[0].place),
            remedy=install_remedy("cel"),
        )
    header = {
        "path": processes.import_path(),
        "cpuSeconds": CPU_SECONDS + len(plan) // _BYTES_PER_SECOND,
        "memoryBytes": _MEMORY + _MEMORY_PER_BYTE * len(plan),
        "now": now.isoformat() if now is not None else "",
        "questions": [_question(policy) for policy in policies],
    }
    status, lines = _run_evaluator(json.dumps(header).encode() + b"\n" + plan + b"\n")
    answers: list[JsonDict] = [json.loads(line) for line in lines]
    if len(answers) < len(policies):
        raise _early_end_error(policies[len(answers)], status)
    return answers


def _question(policy: Policy) -> dict[str, object]:
    from reconciler.adapters.cel.values import parse_quantified

    rule = parse_quantified(policy.expression)
    return {
        "expression": policy.expression,
        "message": policy.message_expression,
        "when": [exemption.when for exemption in policy.exemptions],
        "each": rule._asdict() if rule is not None else None,
    }


def _run_evaluator(content: bytes) -> tuple[int | None, list[bytes]]:
    """Return the exit status (None if it took too long) and the complete lines of the process."""
    with processes.private_folder() as folder:
        status, out = processes.answer_of(
            processes.python_file(_EVALUATOR), content, cwd=folder, variables={}, timeout_s=_WALL_S
        )
    return status, [line for line in out.splitlines(keepends=True) if line.endswith(b"\n")]


def _early_end_error(policy: Policy, status: int | None) -> UnreadableError:
    """Return the error about the policy at which the process ended early."""
    if status is None or status in (-signal.SIGXCPU, -signal.SIGKILL):
        what = "the evaluation takes longer than its limit of processor time"
    else:
        what = "the expression needs too much memory, or is nested too deeply"
    remedy = "simplify it: nested macros over long lists multiply"
    return UnreadableError(f"policy {policy.name}: {what}", where=str(policy.place), remedy=remedy)


def _expression_error(policy: Policy, answer: JsonDict) -> UsageError:
    at = answer["at"]
    inside = f" at {at[0]}:{at[1]} of the expression" if at else ""
    message = f"policy {policy.name}: {answer['part']}: {answer['error']}{inside}"
    where = _place_of(policy, answer["part"])
    revision = " of the base revision" if policy.source is PolicySource.BASE else ""
    return UsageError(message, where=f"{where}{revision}", remedy=_remedy(policy, answer))


def _remedy(policy: Policy, answer: JsonDict) -> str:
    """Return what to do about a failure: the field that was probably meant, if it is about one."""
    from reconciler.adapters.cel.fields import unknown_fields

    text = next(text for part, text, _ in parts_of(policy) if part == answer["part"])
    for step in unknown_fields(text):
        if step.suggestion and answer["error"] == f'no such field: "{step.name}"':
            return f"did you mean {step.owner}.{step.suggestion}?"
    return "docs/policies.md describes the language"


def parts_of(policy: Policy) -> Iterator[tuple[str, str, Place]]:
    """Yield the expressions of a policy: the name of each part, its text and its place."""
    texts = {"expression": policy.expression, "messageExpression": policy.message_expression}
    for index, exemption in enumerate(policy.exemptions):
        texts[f"exemptions[{index}].when"] = exemption.when
    for part, text in texts.items():
        if text:
            yield part, text, _place_of(policy, part)


def _place_of(policy: Policy, part: str) -> Place:
    """Return where a part of a policy is written."""
    place: Place | None = policy.place
    if part == "messageExpression":
        place = policy.message_at
    elif part.startswith("exemptions["):
        place = policy.exemptions[int(part.removeprefix("exemptions[").partition("]")[0])].when_at
    return place or policy.place
