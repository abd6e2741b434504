"""Counts the instance types that each filter leaves, and finds what the nearest one lacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from reconciler.catalog.table import indices
from reconciler.model.resources import EPHEMERAL_STORAGE, HUGEPAGES, MEMORY, MILLI, Resources
from reconciler.placement.nodes.daemons import least
from reconciler.placement.nodes.space import Space
from reconciler.placement.nodes.template import PoolTemplate, shortfalls
from reconciler.placement.pods.cohort import CohortView
from reconciler.placement.question import Rejection

_AFTER: Final = "after "
_UNITS: Final = (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))


def amount_text(name: str, amount: int) -> str:
    """Return an amount for display: at most two decimals, bytes in binary units."""
    if name in (MEMORY, EPHEMERAL_STORAGE) or name.startswith(HUGEPAGES):
        for unit, size in _UNITS:
            if abs(amount) >= size * MILLI:
                return f"{round(amount / (size * MILLI), 2):g}{unit}"
    return f"{round(amount / MILLI, 2):g}"


class Funnel:
    """The instance types of a NodePool that pass each filter, for one view of a cohort."""

    def __init__(self, view: CohortView, template: PoolTemplate, allowed: int) -> None:
        self._view = view
        self._template = template
        self._allowed = allowed
        # includes unavailable types: availability is one of the filters
        table = template.table
        self._types = table.meeting(template.space.requirements) & table.usable
        self._facts: dict[str, str | int | float] = {"types": self._types.bit_count()}

    def left(self) -> tuple[tuple[str, int], ...]:
        """Return how many types each filter leaves, in order, up to the first that leaves none."""
        self._first_no()
        return filters_of(self._facts)

    def rejection(self) -> Rejection:
        """Return the rejection of the first filter that leaves no type, with a suggestion."""
        found = self._first_no()
        return found or self._say("Unschedulable", "no instance type satisfies everything at once")

    def _first_no(self) -> Rejection | None:
        template, shape = self._template, self._view.cohort.shape
        mask = self._types
        for key, wanted in self._view.stage.step.demand.requirements.items():
            left = mask & template.table.matching(wanted)
            self._facts[f"after {key}"] = left.bit_count()
            if not left:
                return self._say(
                    "NoTypeMeetsRequirements",
                    f"no instance type left after {wanted}: relax that requirement",
                )
            mask = left
        spaces = self._spaces() or [template.space]
        offered = mask & _union(space.mask for space in spaces)
        self._facts["after offerings"] = offered.bit_count()
        if not offered:
            return self._say(
                "NoOffering",
                "no suitable instance type is available in the allowed zones and capacity types: "
                "allow more of them",
            )
        fits = template.fitting(offered, shape.requests, ())
        self._facts["after resources"] = fits.bit_count()
        if not fits:
            return self._too_large(offered)
        return self._after_resources(fits)

    def _after_resources(self, fits: int) -> Rejection | None:
        template, shape = self._template, self._view.cohort.shape
        free = template.fitting(fits, shape.requests, shape.ports)
        if not free:
            ports = ", ".join(str(port.port) for port in shape.ports)
            return self._say(
                "HostPortTaken", f"its host port ({ports}) is used by a DaemonSet on every node"
            )
        within = free & self._allowed
        self._facts["after limits"] = within.bit_count()
        if not within:
            return self._say(
                "LimitReached",
                "every instance type that it fits on exceeds the remaining spec.limits",
            )
        for space in self._spaces():
            missed = shortfalls(template.table, within & space.mask, space)
            for key, (wanted, achieved) in missed.items():
                return self._say(
                    "MinValuesUnmet",
                    f"the instance types that it fits on have {achieved} values of {key}, but "
                    f"minValues is {wanted.min_values}: lower minValues or the pod's requests",
                )
        return None

    def _spaces(self) -> list[Space]:
        return [s for equals in self._view.spaces(self._template.space) for s in equals]

    def _too_large(self, mask: int) -> Rejection:
        """Return which resource no type has enough of, and the most that a type has."""
        template = self._template
        daemons = least(template.daemon_groups, mask)
        requests: Resources = self._view.cohort.shape.requests
        beside = " (excluding DaemonSets)" if daemons else ""
        for name, amount in requests.items():
            most = template.table.most(name, mask & template.table.usable)
            most -= daemons.get(name, 0)
            if amount > 0 and amount > most:
                wanted, largest = amount_text(name, amount), amount_text(name, max(most, 0))
                self._facts |= {f"needs {name}": wanted, f"largest {name}": largest}
                self._nearest(mask)
                return self._say(
                    "TooLarge",
                    f"requests {wanted} {name}, but the largest allowed instance type has"
                    f" {largest}{beside}",
                )
        asked = " and ".join(
            f"{amount_text(name, amount)} {name}" for name, amount in _notable(requests).items()
        )
        nearest, lacks = self._nearest(mask)
        what = f"{asked} together" if asked else "enough capacity"
        return self._say(
            "TooLarge",
            f"no allowed instance type has {what}{beside}; the closest is {nearest}, which lacks"
            f" {lacks}",
        )

    def _nearest(self, mask: int) -> tuple[str, str]:
        """Return the type that lacks the smallest share of the requests, and what it lacks."""
        template = self._template
        table, requests = template.table, self._view.cohort.shape.requests
        offered = {name: table.allocatable(name) for name in requests}
        best: tuple[float, str, str] | None = None
        for group in template.daemon_groups:
            for index in indices(mask & group.mask):
                missing = {
                    name: amount + group.requests.get(name, 0) - offered[name][index]
                    for name, amount in requests.items()
                    if amount > 0
                }
                lacks = {name: gap for name, gap in missing.items() if gap > 0}
                share = sum(gap / requests[name] for name, gap in lacks.items())
                if lacks and (best is None or (share, table.names[index]) < best[:2]):
                    text = " and ".join(f"{amount_text(n, gap)} {n}" for n, gap in lacks.items())
                    best = (share, table.names[index], text)
        if best is None:
            return "no instance type", "everything"
        self._facts |= {"nearest type": best[1], "nearest type lacks": best[2]}
        return best[1], best[2]

    def _say(self, code: str, sentence: str) -> Rejection:
        text = f"NodePool {self._template.name}: {sentence}"
        return Rejection(code, text, self._template.name, dict(self._facts))


def filters_of(facts: Mapping[str, str | int | float]) -> tuple[tuple[str, int], ...]:
    """Return the filters that a rejection's facts contain, in order, with the types left by each.

    The first filter is the NodePool itself.
    """
    found = [("NodePool", int(facts["types"]))] if "types" in facts else []
    for name, count in facts.items():
        if name.startswith(_AFTER):
            found.append((name.removeprefix(_AFTER), int(count)))
    return tuple(found)


def _notable(requests: Mapping[str, int]) -> dict[str, int]:
    return {name: amount for name, amount in requests.items() if amount and name != "pods"}


def _union(masks: Iterable[int]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found
