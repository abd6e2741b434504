"""The actions of a plan: similar ones as one row with a count, each with its reason."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import fsum
from typing import Final, NamedTuple

from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.plan.render.sections.cells import (
    Box,
    Cell,
    Column,
    Dollars,
    Flow,
    Line,
    Name,
    NameList,
    Section,
    SectionRow,
    Text,
    condensed,
    one_of,
    rows_of,
)
from reconciler.plan.render.wording import (
    counted,
    dollars,
    format_pods,
    format_reason,
    format_side,
    image_label,
    listed,
    short_node,
    zones_text,
)
from reconciler.plan.value.actions import Action, ActionKind, DriftedClaim, PlannedCommand
from reconciler.plan.value.nodes import LaunchReason, PlannedNodeClaim
from reconciler.plan.value.plan import Plan

_KINDS_MAX: Final = 3
"""How many kinds of machines a row names; more are counted."""

BOXES_MAX: Final = 120
"""A drawing of more actions shows nothing to anybody."""


class ActionStep(NamedTuple):
    """A launch that is not a replacement, or a command with all its actions."""

    verb: str
    reason: str
    command: PlannedCommand | None
    going: tuple[Action, ...]
    coming: tuple[Action, ...]
    causes: tuple[str, ...]

    @property
    def actions(self) -> tuple[Action, ...]:
        """The actions that have a price."""
        return (*self.going, *self.coming)

    @property
    def pools(self) -> tuple[str, ...]:
        """The NodePools of the nodes that go, or else of those that come."""
        return tuple(sorted({a.node_pool for a in self.going or self.coming if a.node_pool}))


def actions(plan: Plan) -> Section | None:
    """Return what happens now: launches, then replacements, then removals."""
    steps = _steps(plan)
    if not steps:
        return None
    claims = {claim.name: claim for claim in plan.node_claims}
    clusters = condensed(steps, _same, _same_machines, _same_reason)
    return Section(
        key="actions",
        title="Actions",
        note="(cost change, $/hour)",
        columns=(Column("nodes"), Column("NodePool"), Column("$/hour", numeric=True)),
        rows=rows_of(clusters, lambda group: _row(group, claims), "action"),
        lines_title="reason",
    )


def order(plan: Plan) -> Section | None:
    """Return the order of the actions, nothing where none waits for another or there are many."""
    flow = flow_of(plan)
    if len(flow.boxes) > BOXES_MAX or not any(box.after for box in flow.boxes):
        return None
    return Section(key="order", title="Order of actions", folded=True, figure=flow)


def _steps(plan: Plan) -> list[ActionStep]:
    drift = {d.node_claim: d for d in plan.drift}
    by_command: dict[str | None, list[Action]] = {}
    for action in plan.actions:
        by_command.setdefault(action.command, []).append(action)
    steps = [ActionStep("launch", a.reason, None, (), (a,), ()) for a in by_command.get(None, [])]
    for command in plan.commands:
        every = by_command.get(command.id, [])
        going = tuple(a for a in every if a.kind == ActionKind.TERMINATE)
        coming = tuple(a for a in every if a.kind == ActionKind.PROVISION)
        found = (drift[name] for name in command.node_claims if name in drift)
        causes = tuple(sorted({_cause(d) for d in found}))
        verb = "replace" if coming else "remove"
        steps.append(ActionStep(verb, command.reason, command, going, coming, causes))
    return sorted(steps, key=_rank)


def _rank(step: ActionStep) -> tuple[int, tuple[str, ...], float, str]:
    """Launches come first, by NodePool and price: the order of claims is that of random names."""
    if step.command is not None:
        return ("replace", "remove").index(step.verb) + 1, (), 0.0, ""
    (launch,) = step.coming
    return 0, step.pools, -(launch.cost_delta or 0.0), launch.instance_type or ""


def _same(step: ActionStep) -> Hashable:
    """Return what launches, or commands of one node each, have in common on one row."""
    if step.command is None:
        kinds = {(a.instance_type, a.capacity_type, _image(a)) for a in step.coming}
        return (step.verb, step.reason, step.pools, frozenset(kinds))
    many = step.command.id if len(step.command.nodes) > 1 else ""
    return (step.verb, step.reason, step.command.decision, step.pools, step.causes, many)


def _same_machines(step: ActionStep) -> Hashable:
    kinds = ((a.kind, a.instance_type, a.capacity_type) for a in step.actions)
    return (step.verb, step.reason, step.causes, frozenset(kinds))


def _same_reason(step: ActionStep) -> Hashable:
    return (step.verb, step.reason)


def _row(group: Sequence[ActionStep], claims: Mapping[str, PlannedNodeClaim]) -> SectionRow:
    first = group[0]
    going = [action for step in group for action in step.going]
    coming = [action for step in group for action in step.coming]
    pools = tuple(sorted({pool for step in group for pool in step.pools}))
    said = " with ".join(filter(None, (machines(going), machines(coming))))
    lines = _why_launched(group, claims) if first.command is None else _why_disrupted(group)
    images = listed(dict.fromkeys(filter(None, map(_image, coming))), 3)
    nodes = tuple(short_node(a.node or a.node_claim or "") for a in going)
    cells: list[Line] = [Line((Text(text),)) for text in (*lines, images) if text]
    if nodes:
        cells.append(Line((NameList(nodes, "node", most=4),)))
    return SectionRow(
        verb=first.verb,
        cells=(Text(said), pool_cell(pools), Dollars(_delta([*going, *coming]), signed=True)),
        lines=tuple(cells),
    )


def pool_cell(pools: tuple[str, ...]) -> Cell:
    """Return the NodePool of a row, or how many there are; the rows below name each."""
    return Text(f"{len(pools)} NodePools") if len(pools) > 2 else Name(", ".join(pools))


def _image(action: Action) -> str:
    return "" if action.image is None else image_label(action.image)


def _why_launched(group: Sequence[ActionStep], claims: Mapping[str, PlannedNodeClaim]) -> list[str]:
    coming = [action for step in group for action in step.coming]
    made = [claims[name] for a in coming if (name := a.node_claim) is not None and name in claims]
    why = f"{group[0].reason}: {format_reason(group[0].reason)}"
    if group[0].reason == LaunchReason.UNSCHEDULABLE:
        pods = [pod for claim in made for pod in claim.pods]
        why = f"{counted(len(pods), 'pending pod')}: {format_pods(pods)}"
    return [why, _choice(coming, made)]


def _choice(group: Sequence[Action], made: Sequence[PlannedNodeClaim]) -> str:
    zones = sorted({a.zone for a in group if a.zone})
    types = max((claim.instance_types_total for claim in made), default=0)
    where = f"{'zone' if len(zones) == 1 else 'zones'} {zones_text(zones)}" if zones else ""
    others = counted(types - 1, "alternative instance type") if types > 1 else ""
    return "; ".join(filter(None, (where, others)))


def _why_disrupted(group: Sequence[ActionStep]) -> list[str]:
    commands = [step.command for step in group if step.command is not None]
    forceful, reason = commands[0].forceful, commands[0].reason
    causes = list(dict.fromkeys(cause for step in group for cause in step.causes))
    said = listed(causes, 3) if reason == DisruptionReason.DRIFTED else ""
    said = said or one_of((c.message for c in commands), "others") or format_reason(reason)
    moved = sum(command.pods_evicted for command in commands)
    moves = f"{counted(moved, 'pod')} rescheduled" if moved else ""
    if moves and all(command.savings_per_eviction is not None for command in commands):
        saved = fsum(command.savings or 0.0 for command in commands)
        moves += f"; saves {dollars(saved / moved)}/hour per pod moved"
    rule = "disruption budgets do not apply" if forceful else ""
    return [
        f"{reason}{' (forceful)' if forceful else ''}: {said}",
        "; ".join(filter(None, (moves, rule))),
    ]


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
    if len(ordered) > _KINDS_MAX:
        return f"{sum(kinds.values()):,} nodes of {len(ordered)} types"
    return ", ".join(f"{number}\xa0×\xa0{kind}" for kind, number in ordered)


def _delta(actions: Iterable[Action]) -> float | None:
    costs = [action.cost_delta for action in actions]
    return None if None in costs else round(fsum(cost for cost in costs if cost is not None), 9)


_BOX_VERBS: Final = {
    ActionKind.PROVISION: "launch",
    ActionKind.REPLACE: "validate",
    ActionKind.TERMINATE: "remove",
}


def flow_of(plan: Plan) -> Flow:
    """Return the actions with what each waits for."""
    return Flow(tuple(map(_box, plan.actions)))


def _box(action: Action) -> Box:
    what = short_node(action.node or "") or action.node_claim or action.command or ""
    kind = " ".join(filter(None, (action.instance_type, action.capacity_type, action.zone)))
    detail = action.reason if action.kind == ActionKind.REPLACE else kind or action.reason
    title = f"{_BOX_VERBS[action.kind]} {what}"
    return Box(action.id, str(action.kind), title, detail, action.wave, action.depends_on)
