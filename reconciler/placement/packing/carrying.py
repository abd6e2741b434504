"""Carries out a packing on paper: each pod asks the rules whether it may go where it should.

The same code decides as in any other pass. A pod that is refused everywhere it was meant to go
is left to the pass, which finds it a place as for any pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reconciler.model.resources import NODES
from reconciler.placement.claims import OpenClaim
from reconciler.placement.cohort import Cohort, View
from reconciler.placement.newclaims import fit
from reconciler.placement.packing.filling import PaperNode
from reconciler.placement.packing.lots import Lot, Sorted
from reconciler.placement.solve import Pass


class _Planned:
    """A node on paper, the claim once it is open, and the pods that it still waits for."""

    __slots__ = ("claim", "due", "node")

    def __init__(self, node: PaperNode) -> None:
        self.node = node
        self.claim: OpenClaim | None = None
        self.due = dict(node.taken)


class Carrying:
    """One packing being carried out in a pass."""

    def __init__(
        self, solving: Pass, cohorts: Sequence[Cohort], nodes: Iterable[PaperNode]
    ) -> None:
        self._solving = solving
        self._cohorts = cohorts
        self._by_lot: dict[Lot, list[_Planned]] = {}
        for node in nodes:
            planned = _Planned(node)
            for lot in node.taken:
                self._by_lot.setdefault(lot, []).append(planned)

    def run(self, found: Sorted) -> None:
        """Place the pods of all lots; pods that are refused go on waiting."""
        sequences = {number: list(reversed(steps)) for number, steps in found.sequences.items()}
        while sequences:
            before = sum(c.waiting for c in self._cohorts)
            for number in sorted(sequences):
                self._serve(number, sequences[number])
            sequences = {number: steps for number, steps in sequences.items() if steps}
            if sum(c.waiting for c in self._cohorts) == before:
                return

    def _serve(self, number: int, steps: list[tuple[Lot, int]]) -> None:
        """Place a cohort's pods lot by lot, ``steps`` from the back, until one is refused."""
        cohort = self._cohorts[number]
        while steps and cohort.waiting:
            lot, count = steps[-1]
            stage = next(s for s in lot.stages if s in cohort.stages)
            view = stage.view(cohort, self._solving.demands)
            placed = 0 if view.hopeless else self._place(number, view, lot, count)
            if placed:
                index = cohort.stages.index(stage)
                if index:
                    pods = cohort.pods[cohort.waiting_from - placed : cohort.waiting_from]
                    self._solving.steps_taken.update((pod.key, index) for pod in pods)
                steps.pop()
                if placed < count:
                    steps.append((lot, count - placed))
            elif not self._by_lot.get(lot):
                steps.pop()
            else:
                return

    def _place(self, number: int, view: View, lot: Lot, count: int) -> int:
        """Place up to ``count`` pods of a lot on the first node that takes one; say how many."""
        solving = self._solving
        in_unit = dict(lot.cohorts)[number]
        for planned in self._by_lot.get(lot, ()):
            due = planned.due[lot] * in_unit if in_unit == 1 else planned.due[lot]
            if due <= 0:
                continue
            claim = planned.claim
            opening = claim is None
            if claim is None:
                claim = OpenClaim(planned.node.template, f"new node {len(solving.claims) + 1}")
                claim.space = planned.node.site.space
                claim.mask = self._types(planned.node)
            room = view.room_on(claim.host)
            if room <= 0:
                continue
            found = fit(view, claim, claim.mask, solving.reservations, opening=opening)
            if found.space is None:
                continue
            most = min(count, room, due if in_unit == 1 else count)
            if view.stage.by_domain:
                most = 1
            placed = len(solving.put(view.cohort, claim, found, most, is_new=opening))
            planned.claim = claim
            if in_unit == 1:
                planned.due[lot] -= placed
            return placed
        return 0

    def _types(self, node: PaperNode) -> int:
        """Return the types that the claim may become: where limits count, none larger."""
        template, table = node.template, node.template.table
        mask = self._solving.limits.allowed(template)
        for name in self._solving.limits.left(template) or ():
            if name != NODES:
                most = table.most_capacity(name, 1 << node.index)
                mask &= table.capacity_at_most(name, most)
        return mask
