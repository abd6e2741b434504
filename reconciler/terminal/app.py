"""The terminal application: a table of nodes, what is known about the chosen one, and its keys.

Texts of a cluster are shown as they are: nothing in them is markup. Keys that change something ask
first, and only record a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen, Screen
from textual.widgets import DataTable, Footer, Input, Static

from reconciler.inspection.nodetable import SORTS, NodeRow, sort_rows
from reconciler.ports.journal import Verb
from reconciler.terminal.fleet import COLUMNS, WORKLOAD_COLUMNS, TerminalFleet, TerminalView

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

REFRESH_S: Final = 2.0
"""Seconds after which the recorded state is read again."""
_KEYS: Final = """\
enter, e   why the node is disrupted, or not
c, u, d    cordon, uncordon, drain the node: asks first, then records a request
w          workloads and their cost; again: the nodes
/          show only nodes with a text in any column; esc: all
s          next order: name, price, cpu, memory, pods, age
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
    #workloads { display: none; }
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
        self._order = order
        self._text = ""
        self._view = TerminalView()
        self._shown: tuple[NodeRow, ...] = ()

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        yield Input(placeholder="text in any column", id="filter")
        yield DataTable[Text](id="nodes", cursor_type="row")
        yield DataTable[Text](id="workloads", cursor_type="row")
        yield Static(id="blocked")
        yield Static(id="status")
        yield Footer()

    def on_mount(self) -> None:
        """Read the fleet now, and then at intervals."""
        for name, columns in (("#nodes", COLUMNS), ("#workloads", WORKLOAD_COLUMNS)):
            self._table(name).add_columns(*map(Text, columns))
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
        rows = sort_rows(self._view.matching(self._text), self._order)
        self._shown = tuple(rows)
        _refill(table, (self._view.cells[row.claim.name] for row in rows))
        names = [row.claim.name for row in rows]
        if chosen is not None and chosen.claim.name in names:
            table.move_cursor(row=names.index(chosen.claim.name))
        _refill(self._table("#workloads"), self._view.workloads)
        parts = [f"order: {self._order}"]
        if self._text:
            parts.append(f'{len(rows)} of {len(self._view.rows)} nodes have "{self._text}"')
        if not self._view.rows and not self._view.problem:
            parts.append("no nodes are recorded")
        self._base.query_one("#status", Static).update(Text("; ".join(parts)))

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
        """Explain the node on which enter was pressed."""
        if event.data_table.id == "nodes":
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

    def action_workloads(self) -> None:
        """Show who costs what in place of the nodes, and again the nodes."""
        nodes, workloads = self._table("#nodes"), self._table("#workloads")
        shows_nodes = workloads.display
        nodes.display, workloads.display = shows_nodes, not shows_nodes
        (nodes if shows_nodes else workloads).focus()

    def action_filter(self) -> None:
        """Ask for a text that a node has to contain."""
        field = self.query_one("#filter", Input)
        field.add_class("open")
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Show the nodes with the text so far."""
        self._text = event.value
        self._fill()

    def on_input_submitted(self) -> None:
        """Return to the nodes; the filter stays."""
        self._table("#nodes").focus()

    def action_clear(self) -> None:
        """Show all nodes again."""
        field = self.query_one("#filter", Input)
        field.value = ""
        field.remove_class("open")
        self._table("#nodes").focus()

    def action_sort(self) -> None:
        """Use the next order."""
        orders = list(SORTS)
        self._order = orders[(orders.index(self._order) + 1) % len(orders)]
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
