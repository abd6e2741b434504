"""The nodes of a fleet as ``top`` lists them, their orders, and their sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from reconciler.assembly.inputs.records import RecordedFleet
from reconciler.inspection.resources import phase_of
from reconciler.inspection.views import usage_of
from reconciler.model.karpenter.labels import CAPACITY_TYPE, INSTANCE_TYPE, ZONE
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.text.counting import format_count
from reconciler.model.text.money import format_cost
from reconciler.ports.cluster import NodeUsage
from reconciler.render.cells import Section
from reconciler.render.listing import age
from reconciler.render.reply import table_section, text_section

_PHASES: Final = ("Ready", "Registered", "Launched", "Pending", "Terminating")

HEADER: Final = (
    *("NODE", "NODEPOOL", "TYPE", "CAPACITY", "ZONE", "STATUS", "$/HOUR", "CPU", "MEMORY", "PODS"),
    "AGE",
)
RESOURCES: Final = ("cpu", "memory")


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node, or a NodeClaim whose node has not joined yet; without usage if no pass saw it."""

    name: str
    claim: NodeClaim
    status: str
    usage: NodeUsage | None

    @property
    def price(self) -> float | None:
        """USD an hour; None if it is unknown."""
        return None if self.usage is None else self.usage.price

    def share(self, resource: str) -> float:
        """Return the requested share of a resource, 0 if it is unknown."""
        return (self.usage.share(resource) or 0.0) if self.usage is not None else 0.0

    @property
    def pods(self) -> int:
        """How many pods run on it."""
        return 0 if self.usage is None else self.usage.pods


SORTS: Final[Mapping[str, Callable[[NodeRow], object]]] = {
    "name": lambda row: row.name,
    "price": lambda row: -(row.price or 0.0),
    "cpu": lambda row: -row.share("cpu"),
    "memory": lambda row: -row.share("memory"),
    "pods": lambda row: -row.pods,
    "age": lambda row: row.claim.metadata.creation_timestamp or datetime.max.replace(tzinfo=UTC),
}
"""Name of an order → its key; names are sorted alphabetically, all others in descending order."""


def node_rows(
    recorded: RecordedFleet,
    node_pools: Collection[str] = (),
    labels: Iterable[tuple[str, str]] = (),
) -> Iterator[NodeRow]:
    """Yield the nodes of these NodePools with all of these labels; without any, all nodes."""
    labels = tuple(labels)
    usage = usage_of(recorded)
    for claim in recorded.state.store.node_claims():
        if node_pools and claim.node_pool not in node_pools:
            continue
        if any(claim.metadata.labels.get(key) != value for key, value in labels):
            continue
        name = claim.node_or_claim_name
        yield NodeRow(name, claim, phase_of(claim), usage.get(claim.name))


def headline(fleet: str, rows: Sequence[NodeRow]) -> str:
    """Return the sums of these nodes of a fleet in one line."""
    states = Counter(row.status for row in rows)
    phases = [f"{states[phase]} {phase.lower()}" for phase in _PHASES if states[phase]]
    kinds = Counter(row.claim.metadata.labels.get(CAPACITY_TYPE, "") for row in rows)
    kinds.pop("", None)  # not launched yet
    prices = [row.price for row in rows]
    per_hour, unpriced = sum(filter(None, prices)), prices.count(None)
    parts = [
        f"{fleet}: {format_count(len(rows), 'node')}" + (f" ({', '.join(phases)})" if rows else ""),
        *(f"{number} {kind}" for kind, number in sorted(kinds.items())),
        format_count(sum(row.pods for row in rows), "pod"),
        format_cost(per_hour),
        f"{format_count(unpriced, 'node')} without a known price" if unpriced else "",
    ]
    return ", ".join(filter(None, parts))


def sort_rows(rows: Iterable[NodeRow], order: str) -> list[NodeRow]:
    """Return the nodes in one of ``SORTS``, equal ones by name."""
    found = sorted(rows, key=lambda row: row.name)
    found.sort(key=SORTS[order])  # type: ignore[arg-type]
    return found


def node_sections(recorded: RecordedFleet, rows: Sequence[NodeRow]) -> tuple[Section, Section]:
    """Return the sums of these nodes and their table, for a page."""
    cells = [row_cells(row, recorded.now, bar=0) for row in rows]
    return (
        text_section("sums", "", [headline(recorded.fleet, rows)]),
        table_section("nodes", HEADER, cells),
    )


def row_cells(row: NodeRow, now: datetime, bar: int) -> tuple[str, ...]:
    """Return the cells of a node below ``HEADER``; ``bar`` is the length of the bars."""
    labels = row.claim.metadata.labels
    price = "unknown" if row.usage is not None and row.price is None else ""
    return (
        row.name,
        row.claim.node_pool,
        labels.get(INSTANCE_TYPE, ""),
        labels.get(CAPACITY_TYPE, ""),
        labels.get(ZONE, ""),
        row.status,
        price if row.price is None else f"{row.price:.4f}",
        *(_bar_cell(row, name, bar) for name in RESOURCES),
        "" if row.usage is None else str(row.pods),
        age(row.claim.metadata.creation_timestamp, now),
    )


def draw_bar(share: float, length: int) -> str:
    """Return a bar of ``length`` characters filled up to the share, from 0 to 1."""
    filled = round(min(max(share, 0.0), 1.0) * length)
    return "█" * filled + "░" * (length - filled)


def _bar_cell(row: NodeRow, resource: str, length: int) -> str:
    if row.usage is None or row.usage.share(resource) is None:
        return ""
    share = row.share(resource)
    return f"{draw_bar(share, length)} {share:>4.0%}" if length else f"{share:.0%}"
