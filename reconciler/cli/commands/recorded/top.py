"""``reconciler top``: price, utilization and pods of each node, or who costs what, live."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from os import terminal_size
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Final

from msgspec.structs import fields

from reconciler import exitcode
from reconciler.assembly.inputs import records, watching
from reconciler.cli.parser import inputs
from reconciler.inspection.replies import TopNode, TopReply, TopTotal
from reconciler.model.errors import UsageError
from reconciler.model.karpenter.labels import CAPACITY_TYPE, INSTANCE_TYPE, ZONE
from reconciler.model.text.counting import format_count
from reconciler.model.text.quoting import quote_value
from reconciler.model.text.visible import Painted, one_line
from reconciler.notifications.stream import has_colour
from reconciler.options import add_options, option, part, repeated, switch
from reconciler.render.listing import columns, stamp

if TYPE_CHECKING:
    from reconciler.assembly.inputs.records import RecordedFleet
    from reconciler.assembly.inputs.request import StateRequest
    from reconciler.inspection.nodetable import NodeRow
    from reconciler.model.grouping import Grouping
    from reconciler.ports.cluster import NodeUsage

ORDERS: Final = ("name", "price", "cpu", "memory", "pods", "age")
_BAR: Final = 20
"""Characters of the bar of a node; that of the fleet takes the remaining width."""
_NARROW_BAR: Final = 8
_WIDE: Final = 150
"""The minimum number of columns for bars of full length."""
_ABOVE: Final = 5
"""Lines above the table: the fleet, its bars, an empty line and the header."""


def _parse_label(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{quote_value(word)} is not LABEL=VALUE")
    return key, value


@dataclass(frozen=True, slots=True, kw_only=True)
class TopRequest:
    """The nodes to show, by NodePool and labels (all must match), and how they are sorted.

    ``cost_by`` is set to show who costs what instead of the nodes.
    """

    fleet: StateRequest = inputs.of_fleet(inputs.RECORDED)
    node_pools: tuple[str, ...] = repeated(
        "--node-pool", "NAME", "show only the nodes of this NodePool (repeatable)"
    )
    labels: tuple[tuple[str, str], ...] = repeated(
        "--selector",
        "LABEL=VALUE",
        "show only nodes with this label (repeatable; all must match)",
        short="-l",
        type=_parse_label,
    )
    cost_by: Grouping | None = part(
        partial(inputs.add_grouping, what="show who costs what instead of the nodes, by")
    )
    sort: str = option(
        "--sort", None, "order of the nodes (default: name)", choices=ORDERS, default="name"
    )
    is_interactive: bool = switch(
        "--interactive",
        "choose nodes with keys: explain, cordon, uncordon and drain them (extra: terminal)",
        short="-i",
    )
    is_once: bool = switch(
        "--once", "print once and exit (default if the output is not a terminal)"
    )
    output: str = part(partial(inputs.add_output, more=("csv",)))

    def __post_init__(self) -> None:
        """Refuse options that do not fit together.

        Raises:
            UsageError: nodes are selected and not shown, or shown once and chosen with keys.
        """
        if self.cost_by is not None and (self.node_pools or self.labels):
            raise UsageError(
                "--by divides the cost of the whole fleet",
                where="--by",
                remedy="remove --node-pool and --selector",
            )
        is_other = self.cost_by is not None or self.is_once or self.output != "text"
        if self.is_interactive and is_other:
            raise UsageError(
                "the nodes are shown until it is stopped",
                where="--interactive",
                remedy="remove --by, --once and -o",
            )

    @property
    def is_live(self) -> bool:
        """Whether the nodes are shown until the command is stopped."""
        return not self.is_once and sys.stdout.isatty()


add_arguments = partial(add_options, TopRequest)
request_of = partial(inputs.request_from, TopRequest)


def run(request: TopRequest) -> int:
    """Show the nodes, until it is stopped if the output is a terminal.

    Raises:
        UsageError: keys are asked for without a terminal, or without the package that reads them.
    """
    if request.is_interactive:
        _run_interactively(request)
    elif request.is_live:
        watching.watch_until_stopped(lambda: _view(request), sys.stdout)
    else:
        _view(request).show(sys.stdout)
    return exitcode.DONE


def _run_interactively(request: TopRequest) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        what, remedy = "it needs a terminal", "use `reconciler top` without it"
        raise UsageError(what, where="--interactive", remedy=remedy)
    try:
        from reconciler.terminal.app import FleetApp
    except ImportError as error:
        from reconciler.installation import install_remedy

        what, remedy = "it needs the package textual", install_remedy("terminal")
        raise UsageError(what, where="--interactive", remedy=remedy) from error
    from reconciler.terminal.fleet import TerminalFleet

    fleet = TerminalFleet(request.fleet, request.node_pools, request.labels)
    FleetApp(fleet, request.sort).run()


def _view(request: TopRequest) -> watching.View:
    """Return the fleet in the output format."""
    from reconciler.inspection import nodetable
    from reconciler.inspection.costs import to_csv
    from reconciler.render.reply import render_reply

    with records.open_recorded(request.fleet) as recorded:
        if request.cost_by is not None:
            return _cost_view(recorded, request.cost_by, request.output)
        found = nodetable.node_rows(recorded, request.node_pools, request.labels)
        rows = nodetable.sort_rows(found, request.sort)
        reply = _reply(recorded, rows)
        if request.output == "text":
            return watching.View(_render_text(recorded, rows, request), reply)
        if request.output == "csv":
            return watching.View(to_csv(_cells_of_nodes(reply)), reply)
        sections = nodetable.node_sections(recorded, rows)
    title = f"Nodes of {reply.fleet}"
    return watching.View(render_reply(reply, sections, request.output, title=title), reply)


def _cost_view(recorded: RecordedFleet, by: Grouping, output: str) -> watching.View:
    """Return who costs what, as the last pass observed it."""
    from reconciler.inspection import costs
    from reconciler.inspection.views import fleet_usage
    from reconciler.render.reply import render_reply

    usage = fleet_usage(recorded)
    rows = usage.costs if usage is not None else ()
    reply = costs.cost_reply(recorded.fleet, by, rows)
    if output == "text":
        return watching.View(costs.render_costs(recorded.fleet, by, rows), reply)
    if output == "csv":
        return watching.View(costs.costs_csv(by, rows), reply)
    sections, title = [costs.cost_section(by, rows)], f"Cost of {recorded.fleet} by {by}"
    return watching.View(render_reply(reply, sections, output, title=title), reply)


def _cells_of_nodes(reply: TopReply) -> list[list[str]]:
    """Return the nodes as a table, with the fields of their objects."""
    from reconciler.inspection.nodetable import RESOURCES

    plain = [field for field in fields(TopNode) if field.name != "requested_share"]
    names, titles = [f.name for f in plain], [f.encode_name for f in plain]
    header = [*titles, *(f"requestedShare.{name}" for name in RESOURCES)]
    rows = [
        [
            *("" if (value := getattr(node, name)) is None else str(value) for name in names),
            *(str(node.requested_share[name]) for name in RESOURCES),
        ]
        for node in reply.nodes
    ]
    return [header, *rows]


def _reply(recorded: RecordedFleet, rows: Sequence[NodeRow]) -> TopReply:
    """Return the fleet as the reply of the command."""
    from reconciler.inspection.nodetable import RESOURCES

    total = TopTotal(
        nodes=len(rows),
        pods=sum(row.pods for row in rows),
        price_per_hour=round(sum(row.price or 0.0 for row in rows), 6),
        unpriced=sum(row.price is None for row in rows),
        requested_share={name: round(_share(rows, name), 4) for name in RESOURCES},
    )
    return TopReply(fleet=recorded.fleet, nodes=tuple(map(_node, rows)), total=total)


def _node(row: NodeRow) -> TopNode:
    from reconciler.inspection.nodetable import RESOURCES

    labels = row.claim.metadata.labels
    return TopNode(
        name=row.name,
        node_claim=row.claim.name,
        node_pool=row.claim.node_pool,
        instance_type=labels.get(INSTANCE_TYPE, ""),
        capacity_type=labels.get(CAPACITY_TYPE, ""),
        zone=labels.get(ZONE, ""),
        status=row.status,
        price_per_hour=row.price,
        pods=row.pods,
        created_at=stamp(row.claim.metadata.creation_timestamp),
        requested_share={name: round(row.share(name), 4) for name in RESOURCES},
    )


def _resource_sums(rows: Sequence[NodeRow], resource: str) -> tuple[int, int]:
    """Return how much of a resource is requested, and how much there is, in thousandths."""
    total = _total_usage(rows)
    return total.requested.get(resource, 0), total.allocatable.get(resource, 0)


def _total_usage(rows: Sequence[NodeRow]) -> NodeUsage:
    from reconciler.ports.cluster import NodeUsage

    return NodeUsage.total(row.usage for row in rows if row.usage is not None)


def _share(rows: Sequence[NodeRow], resource: str) -> float:
    return _total_usage(rows).share(resource) or 0.0


def _render_text(recorded: RecordedFleet, rows: Sequence[NodeRow], request: TopRequest) -> str:
    """Return the sums of the fleet, and a table of the nodes that fit on the terminal."""
    from reconciler.inspection import nodetable

    size = get_terminal_size() if sys.stdout.isatty() else terminal_size((100, 0))
    colour = has_colour(sys.stdout)
    lines = [one_line(nodetable.headline(recorded.fleet, rows))]
    lines += [_fleet_bar(rows, name, size.columns, colour=colour) for name in nodetable.RESOURCES]
    if not rows:
        return "\n".join(lines) + f"\nNo nodes are recorded{_filter_suffix(request)}.\n"
    room = max(size.lines - _ABOVE - 2, 3) if request.is_live and size.lines else len(rows)
    length = _BAR if size.columns >= _WIDE else _NARROW_BAR
    table: list[tuple[str, ...]] = [nodetable.HEADER]
    table += [nodetable.row_cells(row, recorded.now, length) for row in rows[:room]]
    text = columns(table)
    if len(rows) > room:
        left = format_count(len(rows) - room, "more node")
        text += f"{left}; --node-pool, --selector and --sort choose which are shown\n"
    whole = "\n".join([*lines, "", text])
    return Painted(whole) if colour else whole


def _filter_suffix(request: TopRequest) -> str:
    return " that match" if request.node_pools or request.labels else ""


def _fleet_bar(rows: Sequence[NodeRow], resource: str, width: int, *, colour: bool) -> str:
    from reconciler.inspection.nodetable import draw_bar

    requested, total = _resource_sums(rows, resource)
    share = requested / total if total else 0.0
    unit = 1000 if resource == "cpu" else 1000 * 2**30
    amount = f"{requested / unit:.1f} of {total / unit:.1f} {'CPU' if unit == 1000 else 'GiB'}"
    length = max(min(width - len(amount) - 18, 60), _NARROW_BAR)
    drawn = draw_bar(share, length)
    if colour:
        drawn = f"\x1b[{_share_colour(share)}m{drawn}\x1b[0m"
    return f"{resource:<7} {drawn} {share:>4.0%}  {amount}"


def _share_colour(share: float) -> str:
    """Return the colour of a share: a low utilization is wasteful."""
    return "31" if share < 0.4 else "33" if share < 0.7 else "32"
