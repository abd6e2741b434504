"""What the terminal shows of a recorded fleet, and the requests that its keys record.

Nothing here draws. The state is opened each time it is read and for each request, so that
nothing is held meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from reconciler.assembly.inputs.records import newest_plan, open_recorded
from reconciler.engine.steps.requests import describe_request, record_request
from reconciler.inspection.nodetable import HEADER, NodeRow, headline, node_rows, row_cells
from reconciler.inspection.recordedreasons import explain_recorded_node
from reconciler.inspection.views import fleet_usage
from reconciler.model.errors import StateError
from reconciler.model.grouping import Grouping
from reconciler.model.resources import CPU, MEMORY, format_resources
from reconciler.model.text.money import format_monthly
from reconciler.model.text.visible import one_line
from reconciler.observed.allocation import group_costs
from reconciler.plan.value.plan import Plan
from reconciler.ports.cluster import PodUsage
from reconciler.ports.journal import Verb

if TYPE_CHECKING:
    from reconciler.assembly.inputs.records import RecordedFleet
    from reconciler.assembly.inputs.request import StateRequest

_BAR: Final = 8
COLUMNS: Final = (*HEADER, "BLOCKED BY")
POD_COLUMNS: Final = ("POD", "OWNER", "CPU", "MEMORY", "PRIORITY", "CANNOT BE EVICTED BECAUSE OF")
POD_SORTS: Final[Mapping[str, Callable[[PodUsage], object]]] = {
    "name": lambda pod: (pod.namespace, pod.name),
    "owner": lambda pod: pod.owner,
    "cpu": lambda pod: -pod.cpu,
    "memory": lambda pod: -pod.memory,
    "priority": lambda pod: -(pod.priority or 0),
    "blocker": lambda pod: (not pod.blocker, pod.blocker),
}
"""Name of an order of pods → its key; equal pods are sorted by name."""
WORKLOAD_COLUMNS: Final = ("WORKLOAD", "$/MONTH", "PODS")


@dataclass(frozen=True, slots=True)
class TerminalView:
    """A fleet as it is recorded: its nodes, and what its workloads cost.

    ``cells`` are those of each NodeClaim below ``COLUMNS``, and ``pods`` the pods on its node; they
    are recorded for a limited number of nodes. ``problem`` says why nothing is shown.
    """

    title: str = ""
    rows: tuple[NodeRow, ...] = ()
    cells: Mapping[str, Sequence[str]] = field(default_factory=dict)
    workloads: tuple[tuple[str, ...], ...] = ()
    pods: Mapping[str, Sequence[PodUsage]] = field(default_factory=dict)
    problem: str = ""

    def matching(self, text: str) -> list[NodeRow]:
        """Return the nodes of which a cell contains a text; case does not count."""
        wanted = text.lower()
        return [
            row
            for row in self.rows
            if any(wanted in cell.lower() for cell in self.cells[row.claim.name])
        ]

    def pod_cells(self, node_claim: str, text: str, order: str) -> list[tuple[str, ...]]:
        """Return the cells below ``POD_COLUMNS`` of the pods on a node that contain a text."""
        pods = sorted(self.pods.get(node_claim, ()), key=lambda pod: (pod.namespace, pod.name))
        pods.sort(key=POD_SORTS[order])  # type: ignore[arg-type]
        wanted = text.lower()
        rows = map(_pod_cells, pods)
        return [row for row in rows if any(wanted in cell.lower() for cell in row)]


class TerminalFleet:
    """The recorded fleet of a request, or those of its nodes that the request names."""

    def __init__(
        self,
        request: StateRequest,
        node_pools: Collection[str] = (),
        labels: Collection[tuple[str, str]] = (),
    ) -> None:
        self._request = request
        self._node_pools = node_pools
        self._labels = labels

    def read(self) -> TerminalView:
        """Return the fleet as it is recorded now."""
        try:
            with open_recorded(self._request) as recorded:
                return self._view(recorded)
        except StateError as error:
            return TerminalView(problem=one_line(str(error)))

    def _view(self, recorded: RecordedFleet) -> TerminalView:
        rows = tuple(node_rows(recorded, self._node_pools, self._labels))
        found = newest_plan(recorded.state)
        blocked = _blocked_by(found[1] if found is not None else None)
        usage = fleet_usage(recorded)
        costs = group_costs(usage.costs, Grouping(by_workload=True)) if usage is not None else ()
        cells = {
            row.claim.name: [
                *map(one_line, row_cells(row, recorded.now, _BAR)),
                one_line("; ".join(blocked.get(row.name) or blocked.get(row.claim.name, ()))),
            ]
            for row in rows
        }
        return TerminalView(
            title=one_line(headline(recorded.fleet, rows)),
            pods=usage.pods if usage is not None else {},
            rows=rows,
            cells=cells,
            workloads=tuple(
                (one_line(group.name), format_monthly(group.per_hour), str(group.pods))
                for group in costs
            ),
        )

    def explain(self, row: NodeRow) -> str:
        """Return why the node is disrupted, or not, as ``explain node`` says it."""
        try:
            with open_recorded(self._request) as recorded:
                return explain_recorded_node(recorded, row.claim.status.node_name, row.claim.name)
        except StateError as error:
            return one_line(str(error))

    def describe(self, verb: Verb, row: NodeRow) -> str:
        """Return the effect of a request, as a sentence without a period."""
        return one_line(describe_request(verb, row.claim))

    def request(self, verb: Verb, row: NodeRow) -> str:
        """Record a request for the node, and return who executes it."""
        try:
            with open_recorded(self._request, needs_lease=False) as recorded:
                state = recorded.state
                record_request(state.journal, recorded.now, verb, row.claim)
                holder = state.lease.holder()
        except StateError as error:
            return one_line(str(error))
        if holder is None:
            return "Recorded. No process acts for this fleet: the next `apply` or `run` executes it"
        return one_line(f"Recorded. The daemon {holder} executes it in its next pass")


def _pod_cells(pod: PodUsage) -> tuple[str, ...]:
    requests = format_resources({CPU: pod.cpu, MEMORY: pod.memory})
    priority = "" if pod.priority is None else str(pod.priority)
    name = f"{pod.namespace}/{pod.name}"
    cells = (name, pod.owner, requests[CPU], requests[MEMORY], priority, pod.blocker)
    return tuple(map(one_line, cells))


def _blocked_by(plan: Plan | None) -> Mapping[str, Sequence[str]]:
    """Return the messages about what blocks each node, by its name in the plan, in its order."""
    found: dict[str, list[str]] = {}
    for blocked in plan.blocked if plan is not None else ():
        messages = found.setdefault(blocked.node, [])
        if blocked.message not in messages:
            messages.append(blocked.message)
    return found
