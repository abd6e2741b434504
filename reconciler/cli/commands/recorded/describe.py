"""``reconciler describe``: everything that is recorded about one resource."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from reconciler import exitcode
from reconciler.assembly.inputs import records
from reconciler.cli.parser import inputs
from reconciler.model.text.quoting import quote_value
from reconciler.model.text.visible import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from reconciler.assembly.inputs.records import RecordedFleet
    from reconciler.assembly.inputs.request import StateRequest
    from reconciler.model.karpenter.nodeclaim import NodeClaim
    from reconciler.ports.journal import JournalEntry

KINDS: Final = ("nodeclaim", "node", "nodepool", "plan", "command")
_ENTRIES_MAX: Final = 20
_COMMAND_ENTRIES_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class DescribeRequest:
    """The kind and the name of the resource, and the output format."""

    fleet: StateRequest
    kind: str
    name: str
    output: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the resource."""
    parser.add_argument("kind", type=parse_kind, metavar="KIND", help=f"one of {', '.join(KINDS)}")
    parser.add_argument(
        "name", metavar="NAME",
        help="name of the resource, digest of the plan, or ID of the command",
    )  # fmt: skip
    inputs.add_path(parser)
    inputs.add_output(parser)
    inputs.add_flags(parser, inputs.RECORDED)


request_of = partial(inputs.request_from, DescribeRequest)


def parse_kind(word: str) -> str:
    """Return the kind that ``word`` means, for argparse."""
    singular = word.lower().removesuffix("s")
    if singular not in KINDS:
        raise argparse.ArgumentTypeError(
            f"unknown kind {quote_value(word)} (use one of {', '.join(KINDS)})"
        )
    return singular


def run(request: DescribeRequest) -> int:
    """Print the description; 1 if the name is not recorded."""
    with records.open_recorded(request.fleet) as recorded:
        if request.output == "text":
            sys.stdout.write(_DESCRIBERS[request.kind](recorded, request.name))
        else:
            from reconciler.render.listing import format_document

            sys.stdout.write(format_document(_document(request, recorded), request.output))
    return exitcode.DONE


def _document(request: DescribeRequest, recorded: RecordedFleet) -> dict[str, Any]:
    """Return the resource in the form of ``get``, with the operations on it, newest first."""
    from reconciler.cli.commands.recorded import get, history

    kind, name = f"{request.kind}s", request.name
    document = get.document_of(recorded, kind, name)
    entries = _journal_entries(recorded, request)
    return {**document, "operations": [history.document(entry, None) for entry in entries]}


def _journal_entries(recorded: RecordedFleet, request: DescribeRequest) -> Sequence[JournalEntry]:
    journal = recorded.state.journal
    if request.kind == "command":
        entries = journal.entries(limit=_COMMAND_ENTRIES_MAX)
        return [e for e in entries if e.intent.command == request.name]
    if request.kind not in ("nodeclaim", "node"):
        return []
    claims = recorded.state.store.node_claims()
    names = {request.name} | {
        name
        for claim in claims
        if request.name in (claim.name, claim.status.node_name)
        for name in (claim.name, claim.status.node_name)
    }
    return _operations(recorded, names - {""})


def _describe_claim(recorded: RecordedFleet, name: str) -> str:
    from reconciler.inspection import views

    views.find_item(views.node_claims(recorded), "nodeclaims", name, recorded)
    return _claim_text(
        recorded, next(c for c in recorded.state.store.node_claims() if c.name == name)
    )


def _describe_node(recorded: RecordedFleet, name: str) -> str:
    from reconciler.inspection import views

    views.find_item(views.nodes(recorded), "nodes", name, recorded)
    claims = recorded.state.store.node_claims()
    return _claim_text(recorded, next(c for c in claims if c.status.node_name == name))


def _claim_text(recorded: RecordedFleet, claim: NodeClaim) -> str:
    """Return everything that is recorded about a claim and its node."""
    from reconciler.render.listing import columns

    return (
        columns(_claim_facts(recorded, claim))
        + _pair_section("Labels", claim.metadata.labels)
        + _pair_section("Annotations", claim.metadata.annotations)
        + _pair_section("Allocatable", claim.status.allocatable)
        + _condition_section(recorded, claim)
        + _plan_section(recorded, claim)
        + _history_section(recorded, {claim.name, claim.status.node_name} - {""})
    )


def _claim_facts(recorded: RecordedFleet, claim: NodeClaim) -> list[tuple[str, str]]:
    from reconciler.inspection.views import phase_of
    from reconciler.model.karpenter.labels import CAPACITY_TYPE, INSTANCE_TYPE, ZONE
    from reconciler.render.listing import age, clock_time

    labels, created = claim.metadata.labels, claim.metadata.creation_timestamp
    since = age(created, recorded.now)
    offering = [labels[k] for k in (INSTANCE_TYPE, CAPACITY_TYPE, ZONE) if labels.get(k)]
    facts = [
        ("NodeClaim:", claim.name),
        ("NodePool:", claim.node_pool),
        ("NodeClass:", claim.spec.node_class_ref.name),
        ("Status:", phase_of(claim)),
        (
            "Created:",
            f"{clock_time(created)} ({since} ago)" if created else "",
        ),
        ("Instance:", claim.status.provider_id),
        ("Offering:", ", ".join(offering)),
        ("Node:", claim.status.node_name),
        ("Image:", claim.status.image_id),
        ("Taints:", ", ".join(map(str, claim.spec.taints))),
        ("Expires:", clock_time(claim.expires_at) or "never"),
    ]
    facts += [
        ("Command:", f"{c.id}: {c.reason}, {c.decision}, {c.phase.value}")
        for c in recorded.state.store.commands()
        if claim.name in (*c.node_claims, *c.replacements)
    ]
    return facts


def _pair_section(title: str, pairs: Mapping[str, Any]) -> str:
    if not pairs:
        return ""
    return f"\n{title}:\n" + "".join(
        f"  {one_line(f'{key}={pairs[key]}')}\n" for key in sorted(pairs)
    )


def _condition_section(recorded: RecordedFleet, claim: NodeClaim) -> str:
    from reconciler.render.listing import age, columns

    if not claim.status.conditions:
        return ""
    rows = [
        (c.type, c.status, age(c.last_transition_time, recorded.now), c.reason, c.message)
        for c in claim.status.conditions
    ]
    header = ("TYPE", "STATUS", "AGE", "REASON", "MESSAGE")
    return "\nConditions:\n" + columns([header, *rows], indent=2)


def _plan_section(recorded: RecordedFleet, claim: NodeClaim) -> str:
    """Return the explanation of a claim from the newest plan, empty if there is no plan."""
    from reconciler.plan.explain.reasons import explain_node

    found = records.newest_plan(recorded.state)
    if found is None:
        return ""
    newest, plan = found
    answer = explain_node(plan, claim.status.node_name, claim.name)
    lines = [answer.verdict, *(f"{r.code}: {r.message}" for r in answer.reasons), *answer.facts]
    return f"\nPlan {newest.digest}:\n" + "".join(f"  {line}\n" for line in lines)


def _history_section(recorded: RecordedFleet, targets: set[str]) -> str:
    from reconciler.cli.commands.recorded.history import rows_of
    from reconciler.render.listing import columns

    entries = _operations(recorded, targets)
    if not entries:
        return ""
    header = ("AT", "VERB", "TARGET", "OUTCOME", "REVISION", "REASON", "MESSAGE")
    rows = rows_of(entries, 60)
    return "\nHistory, newest first:\n" + columns([header, *rows], indent=2)


def _operations(recorded: RecordedFleet, targets: set[str]) -> list[JournalEntry]:
    """Return the newest operations on these NodeClaims and nodes, newest first."""
    journal = recorded.state.journal
    entries = [e for t in targets for e in journal.entries(limit=_ENTRIES_MAX, target=t)]
    return sorted(entries, key=lambda e: -e.sequence)[:_ENTRIES_MAX]


def _describe_node_pool(recorded: RecordedFleet, name: str) -> str:
    from reconciler.inspection import views
    from reconciler.render.listing import Listing, columns, format_table
    from reconciler.source.plainyaml import dump

    item = views.find_item(views.node_pools(recorded), "nodepools", name, recorded)
    pool = next(o for o in recorded.state.store.objects() if (o.kind, o.name) == ("NodePool", name))
    text = columns(
        [
            ("NodePool:", name),
            ("Revision:", pool.revision),
            ("Hash:", pool.hash),
            ("Nodes:", f"{item.cells[2]}, {item.cells[3]} of them ready"),
        ]
    )
    spec = dump(pool.data.get("spec"), sort_keys=False)
    text += "\nSpec:\n" + "".join(f"  {line}\n" for line in spec.splitlines())
    claims = views.node_claims(recorded)
    ours = [i for i in claims.items if i.cells[1] == name]
    if ours:
        text += "\n" + format_table(Listing(claims.header, ours), wide=False)
    return text


def _describe_plan(recorded: RecordedFleet, digest: str) -> str:
    from reconciler.inspection import views
    from reconciler.plan.render.text import render_text
    from reconciler.plan.value.plan import from_json

    found = recorded.state.store.plan(digest)
    if found is None:
        views.find_item(views.plans(recorded), "plans", digest, recorded)
    assert found is not None
    return render_text(from_json(found.body, f"plan {digest}"))


def _describe_command(recorded: RecordedFleet, name: str) -> str:
    from reconciler.cli.commands.recorded.history import rows_of
    from reconciler.inspection import views
    from reconciler.model.text.money import format_dollars
    from reconciler.plan.render.wording import format_reason
    from reconciler.render.listing import age, clock_time, columns

    views.find_item(views.commands(recorded), "commands", name, recorded)
    command = next(c for c in recorded.state.history.commands() if c.id == name)
    savings = "" if command.savings is None else f"{format_dollars(command.savings)}/hour"
    ago = age(command.started_at, recorded.now)
    text = columns(
        [
            ("Command:", command.id),
            ("Reason:", f"{command.reason}: {format_reason(command.reason)}"),
            ("Decision:", command.decision),
            ("Phase:", command.phase.value),
            ("Message:", command.message),
            ("Started:", f"{clock_time(command.started_at)} ({ago} ago)"),
            ("Revision:", command.revision),
            ("Plan:", command.plan),
            ("NodeClaims:", ", ".join(command.node_claims)),
            ("Replacements:", ", ".join(command.replacements)),
            ("Savings:", savings),
        ]
    )
    journal = recorded.state.journal.entries(limit=_COMMAND_ENTRIES_MAX)
    entries = [e for e in journal if e.intent.command == name]
    if entries:
        header = ("AT", "VERB", "TARGET", "OUTCOME", "REVISION", "REASON", "MESSAGE")
        text += "\nOperations, newest first:\n" + columns([header, *rows_of(entries, 60)], indent=2)
    return text


_DESCRIBERS: Final[dict[str, Callable[[RecordedFleet, str], str]]] = {
    "nodeclaim": _describe_claim,
    "node": _describe_node,
    "nodepool": _describe_node_pool,
    "plan": _describe_plan,
    "command": _describe_command,
}
