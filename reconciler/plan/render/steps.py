"""The actions of a plan for people: similar actions grouped, each group with its reason.

All renderings for people share these steps; programs read the actions themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from math import fsum
from typing import Final, Literal, TypeVar

import msgspec

from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.plan.render.wording import (
    counted,
    dollars,
    format_pods,
    format_reason,
    format_side,
    image_label,
    listed,
    zones_text,
)
from reconciler.plan.value.actions import Action, ActionKind
from reconciler.plan.value.changes import DriftedClaim
from reconciler.plan.value.disruption import PlannedCommand
from reconciler.plan.value.nodes import LaunchReason, PlannedNodeClaim
from reconciler.plan.value.plan import Plan

T = TypeVar("T")

KINDS_MAX: Final = 3
"""How many kinds of machines a step names; more are counted."""


class ActionGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Similar launches, replacements or removals.

    ``going`` and ``coming`` are types of nodes (``3 × m7g.large spot``); ``delta`` is in USD
    an hour, None where a part of it has no price.
    """

    verb: Literal["launch", "replace", "remove"]
    reason: str
    node_pool: str = ""
    count: int = 0
    going: str = ""
    coming: str = ""
    delta: float | None = None
    nodes: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    forceful: bool = False


def steps_of(plan: Plan) -> list[ActionGroup]:
    """Return the steps of a plan: launches, then replacements, then removals."""
    by_command: dict[str | None, list[Action]] = {}
    for action in plan.actions:
        by_command.setdefault(action.command, []).append(action)
    claims = {claim.name: claim for claim in plan.node_claims}
    launches = by_command.get(None, [])
    steps = [_launch(group, claims) for group in grouped(launches, _launch_key)]
    commands = [(c, by_command.get(c.id, [])) for c in plan.commands]
    drift = {d.node_claim: d for d in plan.drift}
    keyed = grouped(commands, lambda pair: _command_key(pair, drift))
    taken = [_command(group, drift) for group in keyed]
    return [*steps, *(s for s in taken if s.coming), *(s for s in taken if not s.coming)]


def grouped(items: Iterable[T], key: Callable[[T], object]) -> list[list[T]]:
    """Return the items in groups of equal keys, in the order in which the keys first occur."""
    groups: dict[Hashable, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())


def _launch_key(action: Action) -> Hashable:
    image = _image(action)
    return (action.node_pool, action.reason, action.instance_type, action.capacity_type, image)


def _image(action: Action) -> str:
    return "" if action.image is None else image_label(action.image)


def _images(actions: Iterable[Action]) -> str:
    """Return the images that nodes are launched with, once each."""
    return listed(dict.fromkeys(filter(None, map(_image, actions))), 3)


def _launch(group: Sequence[Action], claims: dict[str, PlannedNodeClaim]) -> ActionGroup:
    first = group[0]
    made = [claims[a.node_claim] for a in group if a.node_claim in claims]
    pods = [pod for claim in made for pod in claim.pods]
    why = format_reason(first.reason)
    if first.reason == LaunchReason.UNSCHEDULABLE:
        why = f"{counted(len(pods), 'pending pod')}: {format_pods(pods)}"
    return ActionGroup(
        verb="launch",
        reason=first.reason,
        node_pool=first.node_pool or "",
        count=len(group),
        coming=machines(group),
        delta=_delta(group),
        nodes=tuple(a.node_claim or "" for a in group),
        details=(why, *filter(None, (_choice(group, made), _images(group)))),
    )


def _choice(group: Sequence[Action], made: Sequence[PlannedNodeClaim]) -> str:
    zones = sorted({a.zone for a in group if a.zone})
    types = max((claim.instance_types_total for claim in made), default=0)
    where = f"{'zone' if len(zones) == 1 else 'zones'} {zones_text(zones)}" if zones else ""
    others = counted(types - 1, "alternative instance type") if types > 1 else ""
    return "; ".join(filter(None, (where, others)))


def _command_key(
    pair: tuple[PlannedCommand, Sequence[Action]], drift: dict[str, DriftedClaim]
) -> Hashable:
    command, actions = pair
    pools = tuple(sorted({a.node_pool or "" for a in actions}))
    causes = tuple(sorted({_cause(drift[c]) for c in command.node_claims if c in drift}))
    many = len(command.nodes) > 1
    return (command.reason, command.decision, pools, causes, command.id if many else "")


def _command(
    group: Sequence[tuple[PlannedCommand, Sequence[Action]]], drift: dict[str, DriftedClaim]
) -> ActionGroup:
    actions = [action for _, part in group for action in part]
    going = [a for a in actions if a.kind == ActionKind.TERMINATE]
    coming = [a for a in actions if a.kind == ActionKind.PROVISION]
    first = group[0][0]
    pools = sorted({a.node_pool for a in going if a.node_pool})
    where = (f"NodePools: {', '.join(pools)}",) if len(pools) > 1 else ()
    return ActionGroup(
        verb="replace" if coming else "remove",
        reason=first.reason,
        node_pool=f"{len(pools)} pools" if len(pools) > 1 else "".join(pools),
        count=len(going),
        going=machines(going),
        coming=machines(coming),
        delta=_delta([*going, *coming]),
        nodes=tuple(a.node or a.node_claim or "" for a in going),
        details=(*_why(group, drift), *where, *filter(None, (_images(coming),))),
        forceful=first.forceful,
    )


def _why(
    group: Sequence[tuple[PlannedCommand, Sequence[Action]]], drift: dict[str, DriftedClaim]
) -> tuple[str, ...]:
    commands = [command for command, _ in group]
    claims = [name for command in commands for name in command.node_claims]
    causes = list(dict.fromkeys(_cause(drift[name]) for name in claims if name in drift))
    why = "; ".join(causes) if causes and commands[0].reason == DisruptionReason.DRIFTED else ""
    moved = sum(command.pods_evicted for command in commands)
    moves = f"{counted(moved, 'pod')} rescheduled" if moved else ""
    if moves and all(command.savings_per_eviction is not None for command in commands):
        saved = fsum(command.savings or 0.0 for command in commands)
        moves += f"; saves {dollars(saved / moved)}/hour per pod moved"
    forceful = "disruption budgets do not apply" if commands[0].forceful else ""
    words = list(dict.fromkeys(command.message for command in commands if command.message))
    said = why or (listed(words, 2) if words else format_reason(commands[0].reason))
    return (said, *filter(None, ("; ".join(filter(None, (moves, forceful))),)))


def _cause(drift: DriftedClaim) -> str:
    fields = listed([field.path for field in drift.fields], 3)
    side = format_side(drift.side)
    if fields and drift.side == "git":
        return f"{fields} {side}"
    if fields:
        return f"{drift.reason}: {fields}{' ' if side else ''}{side}"
    return f"{drift.reason} ({side})" if side else drift.reason


def machines(actions: Iterable[Action]) -> str:
    """Return the types of the nodes of actions: ``2 × m7g.large spot, 1 × m5.xlarge spot``."""
    kinds: dict[str, int] = {}
    for action in actions:
        kind = " ".join(filter(None, (action.instance_type, action.capacity_type)))
        kinds[kind or "node"] = kinds.get(kind or "node", 0) + 1
    ordered = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
    if len(ordered) > KINDS_MAX:
        return f"{sum(kinds.values()):,} nodes of {len(ordered)} types"
    return ", ".join(f"{number}\xa0×\xa0{kind}" for kind, number in ordered)


def _delta(actions: Iterable[Action]) -> float | None:
    costs = [action.cost_delta for action in actions]
    return None if None in costs else round(fsum(cost for cost in costs if cost is not None), 9)
