"""Everything that is recorded about one resource, as sections, and the operations on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

from reconciler.assembly.inputs.records import RecordedFleet, newest_plan
from reconciler.inspection import views
from reconciler.inspection.operations import HEADER, operation_resource, operation_rows
from reconciler.inspection.resources import RecordedResource, phase_of
from reconciler.model.karpenter.labels import CAPACITY_TYPE, INSTANCE_TYPE, ZONE
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.text.money import format_cost
from reconciler.plan.explain.reasons import explain_node
from reconciler.plan.render.wording import format_reason
from reconciler.ports.journal import JournalEntry
from reconciler.render.cells import Section, Verbatim
from reconciler.render.listing import age, clock_time
from reconciler.render.reply import table_section, text_section

_ENTRIES_MAX: Final = 20
_COMMAND_ENTRIES_MAX: Final = 10_000
_MESSAGE_WIDTH: Final = 60


def describe(recorded: RecordedFleet, kind: str, name: str) -> list[Section]:
    """Return what is recorded about a resource other than a plan; the caller has seen it."""
    return list(_DESCRIBERS[kind](recorded, name))


def operations_on(recorded: RecordedFleet, kind: str, name: str) -> tuple[RecordedResource, ...]:
    """Return the operations on a resource, newest first."""
    if kind == "command":
        entries: Sequence[JournalEntry] = _command_entries(recorded, name)
    elif kind in ("nodeclaim", "node"):
        names = {name} | {
            each
            for claim in recorded.state.store.node_claims()
            if name in (claim.name, claim.status.node_name)
            for each in (claim.name, claim.status.node_name)
        }
        entries = _entries(recorded, names - {""})
    else:
        entries = ()
    return tuple(map(operation_resource, entries))


def _command_entries(recorded: RecordedFleet, name: str) -> list[JournalEntry]:
    journal = recorded.state.journal.entries(limit=_COMMAND_ENTRIES_MAX)
    return [entry for entry in journal if entry.intent.command == name]


def _entries(recorded: RecordedFleet, targets: set[str]) -> list[JournalEntry]:
    """Return the newest operations on these NodeClaims and nodes, newest first."""
    journal = recorded.state.journal
    entries = [e for t in targets for e in journal.entries(limit=_ENTRIES_MAX, target=t)]
    return sorted(entries, key=lambda e: -e.sequence)[:_ENTRIES_MAX]


def _describe_claim(recorded: RecordedFleet, name: str) -> Iterator[Section]:
    return _claim_sections(
        recorded, next(c for c in recorded.state.store.node_claims() if c.name == name)
    )


def _describe_node(recorded: RecordedFleet, name: str) -> Iterator[Section]:
    claims = recorded.state.store.node_claims()
    return _claim_sections(recorded, next(c for c in claims if c.status.node_name == name))


def _claim_sections(recorded: RecordedFleet, claim: NodeClaim) -> Iterator[Section]:
    """Yield everything that is recorded about a claim and its node."""
    yield _facts(_claim_facts(recorded, claim))
    yield from _pair_section("Labels", claim.metadata.labels)
    yield from _pair_section("Annotations", claim.metadata.annotations)
    yield from _pair_section("Allocatable", claim.status.allocatable)
    if claim.status.conditions:
        conditions = [
            (c.type, c.status, age(c.last_transition_time, recorded.now), c.reason, c.message)
            for c in claim.status.conditions
        ]
        header = ("TYPE", "STATUS", "AGE", "REASON", "MESSAGE")
        yield table_section("conditions", header, conditions, title="Conditions")
    yield from _plan_section(recorded, claim)
    entries = _entries(recorded, {claim.name, claim.status.node_name} - {""})
    yield from _operation_section("History, newest first", entries)


def _facts(facts: Sequence[tuple[str, str]]) -> Section:
    return table_section("facts", ("", ""), [(f"{name}:", value) for name, value in facts])


def _ago(at: datetime | None, recorded: RecordedFleet) -> str:
    return f"{clock_time(at)} ({age(at, recorded.now)} ago)" if at else ""


def _claim_facts(recorded: RecordedFleet, claim: NodeClaim) -> list[tuple[str, str]]:
    labels = claim.metadata.labels
    offering = [labels[k] for k in (INSTANCE_TYPE, CAPACITY_TYPE, ZONE) if labels.get(k)]
    return [
        ("NodeClaim", claim.name),
        ("NodePool", claim.node_pool),
        ("NodeClass", claim.spec.node_class_ref.name),
        ("Status", phase_of(claim)),
        ("Created", _ago(claim.metadata.creation_timestamp, recorded)),
        ("Instance", claim.status.provider_id),
        ("Offering", ", ".join(offering)),
        ("Node", claim.status.node_name),
        ("Image", claim.status.image_id),
        ("Taints", ", ".join(map(str, claim.spec.taints))),
        ("Expires", clock_time(claim.expires_at) or "never"),
        *(
            ("Command", f"{c.id}: {c.reason}, {c.decision}, {c.phase.value}")
            for c in recorded.state.store.commands()
            if claim.name in (*c.node_claims, *c.replacements)
        ),
    ]


def _pair_section(title: str, pairs: Mapping[str, object]) -> Iterator[Section]:
    if pairs:
        lines = [f"{key}={pairs[key]}" for key in sorted(pairs)]
        yield text_section(title.lower(), title, lines)


def _plan_section(recorded: RecordedFleet, claim: NodeClaim) -> Iterator[Section]:
    """Yield the explanation of a claim from the newest plan, if there is one."""
    found = newest_plan(recorded.state)
    if found is None:
        return
    newest, plan = found
    answer = explain_node(plan, claim.status.node_name, claim.name)
    lines = [
        answer.verdict,
        *(f"{r.code}: {r.message}" for r in answer.other_reasons),
        *answer.facts,
    ]
    yield text_section("plan", f"Plan {newest.digest}", lines)


def _operation_section(title: str, entries: Sequence[JournalEntry]) -> Iterator[Section]:
    if entries:
        rows = operation_rows(entries, _MESSAGE_WIDTH)
        yield table_section("operations", HEADER, rows, title=title)


def _describe_node_pool(recorded: RecordedFleet, name: str) -> Iterator[Section]:
    from reconciler.source.plainyaml import dump

    item = views.find_item(views.node_pools(recorded), "nodepools", name, recorded)
    pool = next(o for o in recorded.state.store.objects() if (o.kind, o.name) == ("NodePool", name))
    nodes = f"{item.cells[2]}, {item.cells[3]} of them ready"
    yield _facts(
        [("NodePool", name), ("Revision", pool.revision), ("Hash", pool.hash), ("Nodes", nodes)]
    )
    spec = Verbatim(dump(pool.data.get("spec"), sort_keys=False).rstrip("\n"))
    yield Section(key="spec", title="Spec", figure=spec)
    claims = views.node_claims(recorded)
    ours = [item.cells for item in claims.items if item.cells[1] == name]
    if ours:
        yield table_section("nodeclaims", claims.header, ours)


def _describe_command(recorded: RecordedFleet, name: str) -> Iterator[Section]:
    command = next(c for c in recorded.state.history.commands() if c.id == name)
    savings = "" if command.savings is None else format_cost(command.savings)
    yield _facts(
        [
            ("Command", command.id),
            ("Reason", f"{command.reason}: {format_reason(command.reason)}"),
            ("Decision", command.decision),
            ("Phase", command.phase.value),
            ("Message", command.message),
            ("Started", _ago(command.started_at, recorded)),
            ("Revision", command.revision),
            ("Plan", command.plan),
            ("NodeClaims", ", ".join(command.node_claims)),
            ("Replacements", ", ".join(command.replacements)),
            ("Savings", savings),
        ]
    )
    yield from _operation_section("Operations, newest first", _command_entries(recorded, name))


_DESCRIBERS: Final[dict[str, Callable[[RecordedFleet, str], Iterator[Section]]]] = {
    "nodeclaim": _describe_claim,
    "node": _describe_node,
    "nodepool": _describe_node_pool,
    "command": _describe_command,
}
