"""Repeats the best findings with other seeds: a saving of one run may be chance.

The search carries every change to rest once, with the same seed as the current fleet. What it
proposes is then carried to rest with several seeds, each compared with the current fleet of the
same seed, and ranked by the mean.
"""

from __future__ import annotations

from dataclasses import replace as with_fields
from typing import Final

from reconciler.advise.evaluating import Judge
from reconciler.advise.search import Findings, JudgedChanges, is_advice

CONFIRMED_MIN: Final = 3
CONFIRMED_MAX: Final = 20
_WORK: Final = 40_000_000
"""The work of all repetitions together, in evaluated nodes: about 100 CPU seconds."""


def confirm_findings(judge: Judge, found: Findings) -> Findings:
    """Return the findings, the best of them with the range of their savings over several seeds."""
    ranked = sorted((one for one in found.alone if is_advice(one)), key=lambda one: one.order)
    each = max(judge.seeds * judge.rested.used, 1)
    best = {id(one) for one in ranked[: min(max(_WORK // each, CONFIRMED_MIN), CONFIRMED_MAX)]}
    alone = tuple(_confirm(judge, one) if id(one) in best else one for one in found.alone)
    together = _confirm(judge, found.together) if found.together is not None else None
    return with_fields(
        found, alone=alone, together=together if together is None or together.saves else None
    )


def _confirm(judge: Judge, found: JudgedChanges) -> JudgedChanges:
    verdict, workload = found.verdict, found.members[0].workload
    if workload is not None:
        verdict = judge.repeat_without_constraint(workload.constraint, verdict)
    else:
        changes = [change for member in found.members for change in member.changes]
        verdict = judge.repeat_changes(changes, verdict)
    return with_fields(found, verdict=verdict)
