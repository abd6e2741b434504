"""Whether a node to be can take one more pod, and what it then becomes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from reconciler.catalog.table import TypeTable
from reconciler.model.resources import Resources
from reconciler.placement.claims import OpenClaim
from reconciler.placement.cohort import Cohort, View
from reconciler.placement.reservations import Held, Reservations
from reconciler.placement.rules import RuleKind
from reconciler.placement.shape import Shape
from reconciler.placement.space import Space
from reconciler.placement.template import clash, shortfalls

_NO_REQUESTS: Final[Resources] = {}


class Fit(NamedTuple):
    """What a claim becomes with one pod more; without a ``space`` the pod is refused.

    ``requests`` are those of all its pods then. ``never`` says that it stays refused while the
    pass goes on, ``must_wait`` that only reserved capacity is missing. ``held`` are the
    reservations it would hold, None where there are none at all. ``relaxed`` says that
    ``minValues`` were lowered.
    """

    space: Space | None = None
    mask: int = 0
    requests: Resources = _NO_REQUESTS
    held: Held | None = None
    never: bool = False
    must_wait: bool = False
    relaxed: bool = False


_NEVER = Fit(never=True)
_NOT_NOW = Fit()
_WAIT = Fit(must_wait=True)


def fit(
    view: View, claim: OpenClaim, types: int, reservations: Reservations, *, opening: bool = False
) -> Fit:
    """Return what a claim becomes with one pod of the view's cohort.

    ``types`` are the claim's candidates. Only a claim that is being opened may lower the
    ``minValues`` of its NodePool, and only where that is best effort.
    """
    shape, template = view.cohort.shape, claim.template
    if not view.stage.tolerates(template) or (claim.ports and clash(shape.ports, claim.ports)):
        return _NEVER
    spaces = view.spaces(claim.space)
    refused = _NEVER if view.stage.only_fills_up else _NOT_NOW
    if not spaces:
        return refused
    requests = claim.with_more(shape, 1)
    types = template.fitting(types, requests, shape.ports)
    if not types:
        claim.tighten()
        return _NEVER
    simple = not reservations.exist
    for equals in spaces:
        for space in _cheapest_first(template.table, equals, types):
            mask = types & space.mask
            if mask and simple and not space.has_min_values:
                return Fit(space, mask, requests)
            found = _in_space(claim, space, mask, reservations, opening)
            if found.space is not None:
                return found._replace(requests=requests)
            refused = found if found.must_wait else refused
    return refused


def _cheapest_first(table: TypeTable, spaces: tuple[Space, ...], types: int) -> Iterable[Space]:
    """Return spaces that are equally good otherwise by what a node in them costs at least."""
    if len(spaces) == 1:
        return spaces
    return sorted(spaces, key=lambda s: table.cheapest_price(s.offers, types & s.mask))


def _in_space(
    claim: OpenClaim, space: Space, mask: int, reservations: Reservations, opening: bool
) -> Fit:
    """Return what a claim becomes in one of the spaces that are possible, ``mask`` its types."""
    if not mask:
        return _NOT_NOW
    template, relaxed = claim.template, False
    if space.has_min_values and (missed := shortfalls(template.table, mask, space)):
        if not (opening and template.best_effort):
            return _NOT_NOW
        lowered = [item.relaxed(achieved) for item, achieved in missed.values()]
        space, relaxed = template.book.relaxed(space, lowered), True
    held: Held | None = None
    if reservations.exist:
        held = reservations.reservable(claim.held, space, mask)
        if held is None:
            return _WAIT
    return Fit(space, mask, held=held, relaxed=relaxed)


def most_that_fit(
    shape: Shape, claim: OpenClaim, found: Fit, most: int, reservations: Reservations
) -> tuple[int, int, Resources]:
    """Return how many pods of a shape fit a claim that takes one, the types and requests then.

    Types only drop out as pods come, so the largest number is found by halving; where ports or
    reservations are in play pods go one by one.
    """
    assert found.space is not None
    if most <= 1 or shape.ports or reservations.exist:
        return 1, found.mask, found.requests
    template, table = claim.template, claim.template.table
    for name, amount in shape.requests.items():
        if amount > 0:
            room = table.most(name, found.mask) - claim.requests.get(name, 0)
            most = min(most, room // amount)
    low, mask_at_low, high, tried = 1, found.mask, most, most
    while low < high:
        mask = template.fitting(found.mask, claim.with_more(shape, tried), shape.ports)
        if mask and found.space.has_min_values and shortfalls(table, mask, found.space):
            mask = 0
        if mask:
            low, mask_at_low = tried, mask
        else:
            high = tried - 1
        tried = (low + high + 1) // 2
    return low, mask_at_low, claim.with_more(shape, low)


def record(cohort: Cohort, claim: OpenClaim, count: int) -> None:
    """Count pods that a claim has taken in every group that they matter to.

    Where it is open in which domain the node will start, a spread or an affinity counts nothing,
    and an anti-affinity counts everywhere that it may start.
    """
    for group in cohort.counted:
        if not group.counts_on(claim.space, claim.template.taints):
            continue
        if group.by_host:
            group.record(claim.host, count)
            continue
        values = claim.space.values(group.key, claim.mask)
        if group.kind is RuleKind.ANTI_AFFINITY or len(values) == 1:
            for domain in sorted(values):
                group.record(domain, count)
    for group in cohort.repelling:
        if group.by_host:
            group.record(claim.host, count)
            continue
        for domain in sorted(claim.space.values(group.key, claim.mask)):
            group.record(domain, count)
