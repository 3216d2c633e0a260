"""The list of all groups of nodes; Enter opens a group, and then a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, Static

from bftd.client import NodeGroup
from bftd.protocol.fields import printable
from bftd.ui.live import node_groups, panels
from slurm_plugin.errors import SlurmError
from slurm_plugin.nodeset import expand


class NodesScreen(ModalScreen[None]):
    """A screen with groups of nodes; `explain` is called with the name of the chosen node."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,n,q", "leave", "Back")]

    def __init__(self, groups: Sequence[NodeGroup], explain: Callable[[str], None]) -> None:
        super().__init__()
        self._groups = node_groups.in_order(groups)
        self._explain = explain
        self._names: list[str] | None = None

    def compose(self) -> ComposeResult:
        """Compose a heading, the list, and the keys."""
        with Vertical(classes="page"):
            yield Static("", classes="heading", id="heading")
            yield DataTable(id="list", cursor_type="row", cell_padding=0)
            yield Static(Text("Enter opens a group and explains a node; Esc goes back", style="dim"), classes="hint")

    def on_mount(self) -> None:
        """Show the groups."""
        if self.is_attached:  # otherwise the program is ending, so nothing was composed
            self._show_groups()

    def _list(self) -> DataTable[Text]:
        return self.query_one("#list", DataTable)

    def _show_groups(self) -> None:
        self._names = None
        table = self._list()
        table.clear(columns=True)
        for title, width in (("NODES", 28), ("COUNT", 6), ("STATE", 9), ("WHY", None)):
            table.add_column(Text(title), width=width)
        for group in self._groups:
            state = node_groups.state_of(group)
            name = printable(group.nodes)
            table.add_row(
                Text(name if len(name) < 28 else f"{name[:26]}+", no_wrap=True),
                Text(f"{node_groups.size_of(group):>5}"),
                Text(state, style=panels.COLOURS[state]),
                Text(printable(panels.does(group)), no_wrap=True),
            )
        self.query_one("#heading", Static).update(Text(f"Nodes: {len(self._groups)} groups", style="bold"))
        table.focus()

    def _show_names(self, group: NodeGroup) -> None:
        try:
            self._names = expand(group.nodes)
        except SlurmError:
            self._names = [group.nodes]
        table = self._list()
        table.clear(columns=True)
        table.add_column(Text("NODE"))
        for name in self._names:
            table.add_row(Text(printable(name)))
        self.query_one("#heading", Static).update(Text(printable(f"{panels.does(group)}"), style="bold"))
        table.focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open the group or the node under the cursor."""
        event.stop()
        if self._names is None:
            if event.cursor_row < len(self._groups):
                self._show_names(self._groups[event.cursor_row])
        elif event.cursor_row < len(self._names):
            self._explain(self._names[event.cursor_row])

    def action_leave(self) -> None:
        """Return to the groups, and from there to the main screen."""
        if self._names is None:
            self.dismiss(None)
        else:
            self._show_groups()
