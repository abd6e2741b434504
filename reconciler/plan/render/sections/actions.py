"""The actions of a plan: similar ones as one row with a count, each with its reason."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain
from math import fsum
from typing import Final, NamedTuple

from reconciler.model.decision.changes import DriftedClaim
from reconciler.model.grouping import group_by
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.text.counting import format_count, format_list
from reconciler.model.text.money import format_rate
from reconciler.plan.render.headline import first_pass
from reconciler.plan.render.unplaced import has_nodes
from reconciler.plan.render.wording import (
    format_drain_limit,
    format_drift,
    format_image,
    format_pods,
    format_reason,
    format_side,
    format_zones,
    short_node_name,
)
from reconciler.plan.value.actions import Action, ActionKind, PlannedCommand
from reconciler.plan.value.nodes import LaunchReason, PlannedHeadroom, PlannedNodeClaim
from reconciler.plan.value.plan import Plan
from reconciler.render.cells import (
    BOXES_MAX,
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
    group_similar,
    rows_of,
    summarize_texts,
    text_lines,
)

_KINDS_MAX: Final = 3
"""The maximum number of machine types in a row; more are counted."""

_BOX_VERBS: Final = {
    ActionKind.PROVISION: "launch",
    ActionKind.TERMINATE: "remove",
    ActionKind.REBOOT: "reboot",
}

_OF_PRESENT_NODES: Final = (ActionKind.TERMINATE, ActionKind.REBOOT)


class ActionStep(NamedTuple):
    """A launch that is not a replacement, or a command with all its actions.

    ``removed`` are the nodes that it removes or reboots.
    """

    verb: str
    reason: str
    command: PlannedCommand | None
    removed: tuple[Action, ...]
    launched: tuple[Action, ...]
    causes: tuple[str, ...]

    @property
    def actions(self) -> tuple[Action, ...]:
        """The actions that have a price."""
        return (*self.removed, *self.launched)

    @property
    def pools(self) -> tuple[str, ...]:
        """The NodePools of the removed or rebooted nodes, otherwise of the launched ones."""
        return tuple(sorted({a.node_pool for a in self.removed or self.launched if a.node_pool}))

    @classmethod
    def joined(cls, steps: Sequence[ActionStep]) -> ActionStep:
        """Return the steps of one row as one, which has the command of the first."""
        return steps[0]._replace(
            removed=tuple(action for step in steps for action in step.removed),
            launched=tuple(action for step in steps for action in step.launched),
            causes=tuple(dict.fromkeys(cause for step in steps for cause in step.causes)),
        )


def actions(plan: Plan) -> Section | None:
    """Return what happens now: launches, then reboots, replacements and removals."""
    steps = _action_steps(plan)
    if not steps:
        return None
    claims = {claim.name: claim for claim in plan.node_claims}
    rooms = plan.headroom
    clusters = group_similar(steps, _row_key, _machines_key, _reason_key)
    is_change = plan.at_rest is not None
    title = "Karpenter's next actions" if plan.actor else "Actions"
    end = ""
    if is_change and has_nodes(plan):
        title = "First pass from the present nodes"
        end = f"{first_pass(plan)}. This includes what is due without the change."
    elif is_change:
        title = "First pass from an empty cluster"
    return Section(
        key="actions",
        title=title,
        note="(cost change, $/hour)",
        columns=(Column("nodes"), Column("NodePool"), Column("$/hour", numeric=True)),
        rows=rows_of(clusters, lambda group: _action_row(group, claims, rooms), "action"),
        lines_title="reason",
        folded=is_change,
        end=end,
    )


def order(plan: Plan) -> Section | None:
    """Return the order of the actions, nothing if none waits for another or there are many."""
    flow = flow_of(plan)
    if len(flow.boxes) > BOXES_MAX or not any(box.after for box in flow.boxes):
        return None
    return Section(key="order", title="Order of actions", folded=True, figure=flow)


def _action_steps(plan: Plan) -> list[ActionStep]:
    drift = {d.node_claim: d for d in plan.drift}
    by_command = group_by(plan.actions, lambda action: action.command)
    steps = [ActionStep("launch", a.reason, None, (), (a,), ()) for a in by_command.get(None, ())]
    for command in plan.commands:
        drifted = [drift[name] for name in command.node_claims if name in drift]
        steps.append(_command_step(command, by_command.get(command.id, ()), drifted))
    return sorted(steps, key=_sort_key)


def _command_step(
    command: PlannedCommand, actions: Sequence[Action], drifted: Iterable[DriftedClaim]
) -> ActionStep:
    removed = tuple(action for action in actions if action.kind in _OF_PRESENT_NODES)
    launched = tuple(action for action in actions if action.kind == ActionKind.PROVISION)
    verb = "replace" if launched else "remove"
    if not command.removes_nodes:
        verb = "reboot"
    causes = tuple(sorted(set(map(_drift_cause, drifted))))
    return ActionStep(verb, command.reason, command, removed, launched, causes)


def _sort_key(step: ActionStep) -> tuple[int, tuple[str, ...], float, str]:
    """Return a key that sorts launches first, by NodePool and price: claim names are random."""
    if step.command is not None:
        return ("reboot", "replace", "remove").index(step.verb) + 1, (), 0.0, ""
    (launch,) = step.launched
    return 0, step.pools, -(launch.cost_delta or 0.0), launch.instance_type or ""


def _row_key(step: ActionStep) -> Hashable:
    """Return what launches, or commands of one node each, have in common on one row."""
    if step.command is None:
        kinds = {(a.instance_type, a.capacity_type, _image(a)) for a in step.launched}
        return (step.verb, step.reason, step.pools, frozenset(kinds))
    many = step.command.id if len(step.command.nodes) > 1 else ""
    return (step.verb, step.reason, step.command.decision, step.pools, step.causes, many)


def _machines_key(step: ActionStep) -> Hashable:
    kinds = ((a.kind, a.instance_type, a.capacity_type) for a in step.actions)
    return (step.verb, step.reason, step.causes, frozenset(kinds))


def _reason_key(step: ActionStep) -> Hashable:
    return (step.verb, step.reason)


def _action_row(
    group: Sequence[ActionStep],
    claims: Mapping[str, PlannedNodeClaim],
    rooms: Sequence[PlannedHeadroom],
) -> SectionRow:
    step = ActionStep.joined(group)
    pools = tuple(sorted({pool for one in group for pool in one.pools}))
    machines = format_machines(step.removed), format_machines(step.launched)
    lines = (
        _launch_reasons(step, claims, rooms)
        if step.command is None
        else _disruption_reasons(step, [one.command for one in group if one.command is not None])
    )
    images = format_list(dict.fromkeys(filter(None, map(_image, step.launched))), 3)
    cells = list(text_lines(*lines, images))
    if step.removed:
        nodes = tuple(short_node_name(a.node or a.node_claim or "") for a in step.removed)
        cells.append(Line((NameList(nodes, "node", most=4),)))
    return SectionRow(
        verb=step.verb,
        cells=(
            Text(" with ".join(filter(None, machines))),
            pool_cell(pools),
            Dollars(_cost_delta(step.actions), signed=True),
        ),
        lines=tuple(cells),
    )


def pool_cell(pools: tuple[str, ...]) -> Cell:
    """Return the NodePool of a row, or how many there are; the rows below name each."""
    return Text(f"{len(pools)} NodePools") if len(pools) > 2 else Name(", ".join(pools))


def _image(action: Action) -> str:
    return "" if action.image is None else format_image(action.image)


def _launch_reasons(
    step: ActionStep,
    claims: Mapping[str, PlannedNodeClaim],
    rooms: Sequence[PlannedHeadroom],
) -> list[str]:
    names = [action.node_claim or "" for action in step.launched]
    launched = [claims[name] for name in names if name in claims]
    why = f"{step.reason}: {format_reason(step.reason)}"
    if step.reason == LaunchReason.UNSCHEDULABLE:
        pods = list(chain.from_iterable(claim.pods for claim in launched))
        why = f"{format_count(len(pods), 'pending pod')}: {format_pods(pods)}"
    if step.reason == LaunchReason.HEADROOM:
        buffers = [room.buffer for room in rooms if room.node_claims.keys() & names]
        noun = "CapacityBuffer" if len(buffers) == 1 else "CapacityBuffers"
        why = f"Headroom for {noun} {format_list(buffers)}".strip()
    return [why, _launch_alternatives(step.launched, launched)]


def _launch_alternatives(
    group: Sequence[Action], claims_launched: Sequence[PlannedNodeClaim]
) -> str:
    zones = sorted({a.zone for a in group if a.zone})
    types = max((claim.instance_types_total for claim in claims_launched), default=0)
    where = f"{'zone' if len(zones) == 1 else 'zones'} {format_zones(zones)}" if zones else ""
    others = format_count(types - 1, "alternative instance type") if types > 1 else ""
    return "; ".join(filter(None, (where, others)))


def _disruption_reasons(step: ActionStep, commands: Sequence[PlannedCommand]) -> list[str]:
    forceful, reason = commands[0].forceful, commands[0].reason
    cause_text = format_list(step.causes, 3) if reason == DisruptionReason.DRIFTED else ""
    cause_text = (
        cause_text
        or summarize_texts((c.message for c in commands), "others")
        or format_reason(reason)
    )
    moves = _moved_pods(commands)
    rule = "disruption budgets do not apply" if forceful else ""
    drains = {command.termination_grace_period for command in commands} - {""}
    drain = format_list(map(format_drain_limit, sorted(drains)))
    return [
        f"{reason}{' (forceful)' if forceful else ''}: {cause_text}",
        "; ".join(filter(None, (moves, rule, drain))),
        _equal_candidates(commands),
    ]


def _moved_pods(commands: Sequence[PlannedCommand]) -> str:
    """Return how many pods commands move, and what each of them saves if that is known."""
    moved = sum(command.pods_evicted for command in commands)
    if not moved:
        return ""
    moves = f"{format_count(moved, 'pod')} rescheduled"
    if any(command.savings_per_eviction is None for command in commands):
        return moves
    saved = fsum(command.savings or 0.0 for command in commands)
    return f"{moves}; saves {format_rate(saved / moved)} per pod moved"


def _equal_candidates(commands: Iterable[PlannedCommand]) -> str:
    """Return which equal nodes commands choose from: ``one of these 4 equal candidates: …``."""
    counts: dict[tuple[str, ...], int] = {}
    for command in commands:
        for group in command.equal_candidates:
            counts[group.nodes] = counts.get(group.nodes, 0) + group.count
    return "; ".join(
        f"{'one' if count == 1 else count} of these {len(nodes)} equal candidates: "
        f"{format_list(map(short_node_name, nodes), 4)}"
        for nodes, count in counts.items()
        if count < len(nodes)
    )


def _drift_cause(drift: DriftedClaim) -> str:
    fields = format_list([field.path for field in drift.fields], 3)
    side = format_side(drift.side)
    if fields and drift.side == "git":
        return f"{fields} {side}"
    if fields:
        return f"{drift.reason}: {fields}{' ' if side else ''}{side}"
    return format_drift(drift.reason, drift.side)


def format_machines(actions: Iterable[Action]) -> str:
    """Return the types of the nodes of actions: ``2 × m7g.large spot, 1 × m5.xlarge spot``."""
    kinds: dict[str, int] = {}
    for action in actions:
        kind = " ".join(filter(None, (action.instance_type, action.capacity_type)))
        kinds[kind or "node"] = kinds.get(kind or "node", 0) + 1
    ordered = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
    if len(ordered) > _KINDS_MAX:
        return f"{sum(kinds.values()):,} nodes of {len(ordered)} types"
    return ", ".join(f"{number}\xa0×\xa0{kind}" for kind, number in ordered)


def _cost_delta(actions: Iterable[Action]) -> float | None:
    costs = [action.cost_delta for action in actions]
    return None if None in costs else round(fsum(cost for cost in costs if cost is not None), 9)


def flow_of(plan: Plan) -> Flow:
    """Return the actions with what each waits for."""
    removing = (action for action in plan.actions if action.kind in _OF_PRESENT_NODES)
    disrupted = group_by(removing, lambda action: action.command)
    return Flow(tuple(_box(action, disrupted.get(action.command, ())) for action in plan.actions))


def _box(action: Action, disrupted: Sequence[Action]) -> Box:
    """Return the box of an action; that of a command names the nodes that it disrupts."""
    if action.kind == ActionKind.REPLACE:
        title, detail = f"revalidate {_disrupted_nodes(disrupted)}", action.reason
    else:
        what = _machine(action) or action.command or ""
        kind = " ".join(filter(None, (action.instance_type, action.capacity_type, action.zone)))
        title, detail = f"{_BOX_VERBS[action.kind]} {what}", kind or action.reason
    return Box(action.id, str(action.kind), title, detail, action.wave, action.depends_on)


def _disrupted_nodes(disrupted: Sequence[Action]) -> str:
    names = list(filter(None, map(_machine, disrupted)))
    return names[0] if len(names) == 1 else format_count(len(disrupted), "node")


def _machine(action: Action) -> str:
    return short_node_name(action.node or "") or action.node_claim or ""
