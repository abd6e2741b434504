"""The terminal application: a table of nodes, what is known about the chosen one, and its keys.

Texts of a cluster are shown as they are: nothing in them is markup. Keys that change something ask
first, and only record a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import DataTable, Footer, Input, Static

from reconciler.inspection.nodetable import SORTS, NodeRow, sort_rows
from reconciler.model.text.counting import format_count
from reconciler.model.text.quoting import quote_value
from reconciler.ports.cluster import PODS_MAX
from reconciler.ports.journal import Verb
from reconciler.terminal.fleet import (
    COLUMNS,
    POD_COLUMNS,
    POD_SORTS,
    WORKLOAD_COLUMNS,
    TerminalFleet,
    TerminalView,
)

REFRESH_S: Final = 2.0
"""Seconds after which the recorded state is read again."""
_KEYS: Final = """\
enter, e   why the node is disrupted, or not
c, u, d    cordon, uncordon, drain the node: asks first, then records a request
p          pods of the node; again: the nodes
w          workloads and their cost; again: the nodes
/          show only rows with a text in any column
esc        all rows again; then the nodes again
s          next order: name, price, cpu, memory, pods, age; of pods also owner, priority, blocker
r          read the state now (otherwise every 2 seconds)
q          quit"""


class TextScreen(ModalScreen[None]):
    """A text over the nodes, until a key closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter,q,e,question_mark", "app.pop_screen", "close"),
    ]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="box"):
            yield Static(Text(self._text), id="text")
        yield Footer()


class ConfirmScreen(ModalScreen[bool]):
    """A question that only ``y`` answers with yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes"),
        Binding("n,escape,enter,q", "answer(False)", "no"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="box"):
            yield Static(Text(f"{self._question}?"), id="text")
        yield Footer()

    def action_answer(self, answer: bool) -> None:
        """Close the question with an answer."""
        self.dismiss(answer)


class FleetApp(App[None]):
    """Shows a recorded fleet until it is stopped; ``order`` is one of ``SORTS``."""

    CSS = """
    #title, #blocked, #status { height: auto; padding: 0 1; }
    #blocked { max-height: 8; }
    #title { text-style: bold; }
    #filter { display: none; }
    #filter.open { display: block; }
    DataTable { height: 1fr; }
    #workloads, #pods { display: none; }
    TextScreen, ConfirmScreen { align: center middle; }
    .box { width: 90%; height: auto; max-height: 80%; border: round $accent; padding: 0 1;
           background: $surface; }
    """
    TITLE = "reconciler top"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e", "explain", "explain"),
        Binding("c", "cordon", "cordon"),
        Binding("u", "uncordon", "uncordon"),
        Binding("d", "drain", "drain"),
        Binding("p", "pods", "pods"),
        Binding("w", "workloads", "workloads"),
        Binding("slash", "filter", "filter"),
        Binding("s", "sort", "sort"),
        Binding("r", "refresh", "refresh", show=False),
        Binding("escape", "clear", show=False),
        Binding("question_mark", "keys", "keys"),
        Binding("q", "quit", "quit"),
    ]

    def __init__(self, fleet: TerminalFleet, order: str = "name") -> None:
        super().__init__()
        self._fleet = fleet
        self._orders = {"nodes": order, "pods": "name"}
        self._texts = {"nodes": "", "pods": ""}
        self._shows = "nodes"
        self._pods_of = ""
        self._view = TerminalView()
        self._shown: tuple[NodeRow, ...] = ()

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        yield Input(placeholder="text in any column", id="filter")
        yield DataTable[Text](id="nodes", cursor_type="row")
        yield DataTable[Text](id="pods", cursor_type="row")
        yield DataTable[Text](id="workloads", cursor_type="row")
        yield Static(id="blocked")
        yield Static(id="status")
        yield Footer()

    def on_mount(self) -> None:
        """Read the fleet now, and then at intervals."""
        tables = {"nodes": COLUMNS, "pods": POD_COLUMNS, "workloads": WORKLOAD_COLUMNS}
        for name, columns in tables.items():
            self._table(f"#{name}").add_columns(*map(Text, columns))
        self._table("#nodes").focus()
        self.action_refresh()
        self.set_interval(REFRESH_S, self.action_refresh)

    @property
    def _base(self) -> Screen[object]:
        """The screen with the nodes, whatever is shown over it."""
        return self.screen_stack[0]

    def _table(self, name: str) -> DataTable[Text]:
        return self._base.query_one(name, DataTable)

    def action_refresh(self) -> None:
        """Read the recorded state; keys work meanwhile."""
        self.run_worker(self._read, thread=True, exclusive=True, group="read")

    def _read(self) -> None:
        view = self._fleet.read()
        self.call_from_thread(self._show, view)

    def _show(self, view: TerminalView) -> None:
        self._view = view
        title = view.problem or view.title
        self._base.query_one("#title", Static).update(Text(title))
        self._fill()

    def _fill(self) -> None:
        """Show the nodes that match in their order; the chosen one stays chosen."""
        table = self._table("#nodes")
        chosen = self._chosen()
        rows = sort_rows(self._view.matching(self._texts["nodes"]), self._orders["nodes"])
        self._shown = tuple(rows)
        _refill(table, (self._view.cells[row.claim.name] for row in rows))
        names = [row.claim.name for row in rows]
        if chosen is not None and chosen.claim.name in names:
            table.move_cursor(row=names.index(chosen.claim.name))
        _refill(self._table("#workloads"), self._view.workloads)
        if self._shows == "pods" and self._pods_of not in names:
            self._toggle("pods")  # the node is gone: back to the others
        parts = self._fill_pods() if self._shows == "pods" else self._describe_nodes()
        self._base.query_one("#status", Static).update(Text("; ".join(parts)))

    def _describe_nodes(self) -> list[str]:
        text, every = self._texts["nodes"], self._view.rows
        parts = [f"order: {self._orders['nodes']}"]
        if text:
            parts.append(f"{len(self._shown)} of {len(every)} nodes have {quote_value(text)}")
        if not every and not self._view.problem:
            parts.append("no nodes are recorded")
        return parts

    def _fill_pods(self) -> list[str]:
        """Show the pods of the node, and return the parts of the status line."""
        text, order = self._texts["pods"], self._orders["pods"]
        rows = self._view.pod_cells(self._pods_of, text, order)
        _refill(self._table("#pods"), rows)
        total = len(self._view.pods.get(self._pods_of, ()))
        node = self._view.cells[self._pods_of][0]
        parts = [f"{format_count(total, 'pod')} on {node}", f"order: {order}"]
        if text:
            parts.append(f"{len(rows)} of them have {quote_value(text)}")
        if self._pods_of not in self._view.pods:
            parts[0] = f"the pods on {node} are not recorded: at most {PODS_MAX:,} of a fleet are"
        return parts

    def _chosen(self) -> NodeRow | None:
        at = self._table("#nodes").cursor_row
        return self._shown[at] if 0 <= at < len(self._shown) else None

    def on_data_table_row_highlighted(self) -> None:
        """Show in full what blocks the disruption of the chosen node."""
        row = self._chosen()
        message = self._view.cells[row.claim.name][-1] if row is not None else ""
        text = Text(f"Not disrupted: {message}" if message else "")
        self._base.query_one("#blocked", Static).update(text)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Explain the node on which enter was pressed, or whose pods are shown."""
        if event.data_table.id != "workloads":
            self.action_explain()

    def action_explain(self) -> None:
        """Show why the chosen node is disrupted, or not."""
        row = self._chosen()
        if row is not None:
            self.push_screen(TextScreen(self._fleet.explain(row)))

    def action_cordon(self) -> None:
        """Ask, then request that the chosen node gets no new pods."""
        self._ask(Verb.CORDON)

    def action_uncordon(self) -> None:
        """Ask, then request that the chosen node gets pods again."""
        self._ask(Verb.UNCORDON)

    def action_drain(self) -> None:
        """Ask, then request that the pods of the chosen node are evicted."""
        self._ask(Verb.DRAIN_NODE)

    def _ask(self, verb: Verb) -> None:
        row = self._chosen()
        if row is None:
            return

        def record(is_sure: bool | None) -> None:
            if is_sure:
                self.notify(self._fleet.request(verb, row), markup=False)

        self.push_screen(ConfirmScreen(self._fleet.describe(verb, row)), record)

    def action_pods(self) -> None:
        """Show the pods of the chosen node in place of the nodes, and again the nodes."""
        self._toggle("pods")

    def action_workloads(self) -> None:
        """Show who costs what in place of the nodes, and again the nodes."""
        self._toggle("workloads")

    def _toggle(self, name: str) -> None:
        self._shows = "nodes" if self._shows == name else name
        row = self._chosen()
        if self._shows == "pods":
            if row is None:
                self._shows = "nodes"
            else:
                self._pods_of = row.claim.name
        for table in ("nodes", "pods", "workloads"):
            self._table(f"#{table}").display = table == self._shows
        field = self._base.query_one("#filter", Input)
        field.value = self._texts.get(self._shows, "")
        field.set_class(bool(field.value), "open")
        self._table(f"#{self._shows}").focus()
        self._fill()

    def action_filter(self) -> None:
        """Ask for a text that a row has to contain."""
        if self._shows not in self._texts:
            return
        field = self.query_one("#filter", Input)
        field.add_class("open")
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show the rows with the text so far."""
        if self._shows in self._texts and self._texts[self._shows] != event.value:
            self._texts[self._shows] = event.value
            self._fill()

    def on_input_submitted(self) -> None:
        """Return to the rows; the filter stays."""
        self._table(f"#{self._shows}").focus()

    def action_clear(self) -> None:
        """Show all rows again; without a filter, the nodes again."""
        field = self.query_one("#filter", Input)
        if not field.has_class("open") and self._shows != "nodes":
            self._toggle("nodes")
            return
        field.value = ""
        field.remove_class("open")
        self._table(f"#{self._shows}").focus()

    def action_sort(self) -> None:
        """Use the next order."""
        if self._shows not in self._orders:
            return
        orders = list(POD_SORTS if self._shows == "pods" else SORTS)
        place = orders.index(self._orders[self._shows])
        self._orders[self._shows] = orders[(place + 1) % len(orders)]
        self._fill()

    def action_keys(self) -> None:
        """Show what each key does."""
        self.push_screen(TextScreen(_KEYS))


def _refill(table: DataTable[Text], rows: Iterable[Sequence[str]]) -> None:
    """Replace the rows of a table; the view stays where it is."""
    at, top = table.cursor_row, table.scroll_y
    table.clear()
    for row in rows:
        table.add_row(*map(Text, row))
    table.move_cursor(row=max(min(at, table.row_count - 1), 0))
    table.scroll_y = top
