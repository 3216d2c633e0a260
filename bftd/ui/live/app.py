"""The live screen: the pool, the trainers, one of them in detail, decisions; keys to pause, tune and explain."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import threading
from collections.abc import Callable
from typing import Any, ClassVar

from rich.text import Text
from textual import events
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Horizontal
from textual.css.query import NoMatches
from textual.message import Message
from textual.scrollbar import ScrollBar, ScrollBarRender
from textual.widgets import DataTable, Footer, Input, Static

from bftd.base.errors import BftError
from bftd.base.view import state_rank
from bftd.client import Client, Explanation, Status, Trainer
from bftd.protocol.fields import printable
from bftd.ui.live import commands, panels, style
from bftd.ui.live.dialogs import Confirm, PauseDialog, TextDialog, TuneDialog
from bftd.ui.live.glyphs import UNICODE, Glyphs
from bftd.ui.live.history import Memory
from bftd.ui.live.nodes import NodesScreen
from bftd.ui.live.poller import EVERY_S, Look, Poller
from bftd.ui.live.table import COLUMNS, TrainerTable, keys

# Sizes from which on more is shown.
_WIDE, _TALL, _SHORT = 140, 40, 19
_MESSAGE_S = 12.0
_ENDED_BY = (signal.SIGTERM, signal.SIGHUP)
_HELP = """\
arrows, PgUp, PgDn   choose a trainer
Enter, e             why it grew, stayed or shrank
n                    all nodes in groups; Enter opens a group and explains a node
/                    show trainers whose id, name, user, account or state has a text; Esc shows all
s, S                 sort by the next column; reverse the order
p                    pause what is lent, or resume it (administrators)
t                    change settings of the running daemon (administrators)
r                    ask the daemon now
q, Ctrl-C            end; Ctrl-Z suspends

The bar has all nodes: those of regular jobs, those planned for or kept for them, those leased to trainers, idle
ones that may be lent, and those away (down, drained, in quarantine, paused). NODES has the nodes that work and,
behind the arrow, how many the trainer is to have. EFF is the speed over that of as many single nodes.
"""


class Looked(Message):
    """A message from the watcher: news from the daemon."""

    def __init__(self, look: Look) -> None:
        super().__init__()
        self.look = look


class Done(Message):
    """The result of a request to the daemon, or its refusal; `then` is called in the screen's own thread."""

    def __init__(self, text: str, wrong: bool = False, then: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.text = text
        self.wrong = wrong
        self.then = then


class _PlainBar(ScrollBarRender):
    """A scroll bar made of blanks alone."""

    VERTICAL_BARS: ClassVar[list[str]] = [" "] * 8
    HORIZONTAL_BARS: ClassVar[list[str]] = [" "] * 8


class Top(App[None]):
    """The `bft top` application for the daemon of a client."""

    ENABLE_COMMAND_PALETTE = False
    CSS = style.css(plain=False)
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "pause", "Pause"),
        Binding("t", "tune", "Tune"),
        Binding("e", "explain", "Explain", key_display="e"),
        Binding("n", "nodes", "Nodes"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("s", "sort", "Sort"),
        Binding("S", "reverse", show=False),
        Binding("r", "refresh", show=False),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "quit", "Quit"),
        # also while a text is typed or a dialog is open, when Textual uses these keys otherwise
        Binding("ctrl+c", "quit", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
        Binding("escape", "all", show=False),
    ]

    def __init__(self, client: Client, glyphs: Glyphs = UNICODE, every_s: float = EVERY_S) -> None:
        super().__init__()
        self._client = client
        self._glyphs = glyphs
        self._memory = Memory()
        self._watcher = Poller(client, self._hear, every_s)
        self._message_number = 0
        self._drawn: dict[str, Text] = {}
        self._status: Status | None = None
        self._problem = ""
        self._explained: Explanation | None = None
        self._reading: tuple[str, TextDialog] | None = None
        self._wanted = ""
        self.title = "bft top"
        ScrollBar.renderer = _PlainBar if glyphs.plain else ScrollBarRender

    def compose(self) -> ComposeResult:
        """Compose the screen: the pool, the trainers, then one of them and the decisions."""
        yield Static("bftd", id="head")
        yield Static("", id="notices", classes="empty")
        yield Static("", id="bar")
        yield Static("", id="legend")
        yield Static("", id="sets")
        yield TrainerTable(self._glyphs, id="trainers")
        yield Static("", id="none")
        with Container(id="below"):
            with Horizontal(id="detail"):
                yield Static("", id="facts")
                yield Static("", id="curve")
            yield Static("", id="feed")
        yield Static("", id="message", classes="empty")
        yield Input(placeholder="show trainers that have this text; Esc shows all", id="filter")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Start the watcher."""
        self._text("#head", Text(f"asking the daemon at {self._client.address}"))
        self.query_one("#feed").border_title = "decisions, the newest first"
        self.query_one(TrainerTable).focus()
        self._watcher.start()
        loop = asyncio.get_running_loop()
        for number in _ENDED_BY:  # by default they would leave the terminal raw and on the alternate screen
            loop.add_signal_handler(number, functools.partial(self.exit, return_code=128 + number))

    def on_unmount(self) -> None:
        """Stop the watcher."""
        self._watcher.stop()

    def on_resize(self, event: events.Resize) -> None:
        """Choose the layout that suits the new size."""
        self.screen_stack[0].set_class(event.size.width >= _WIDE, "wide")
        self.screen_stack[0].set_class(event.size.height >= _TALL, "tall")
        self.screen_stack[0].set_class(event.size.height < _SHORT, "short")
        self.call_after_refresh(self._draw)

    def _hear(self, look: Look) -> None:
        """Pass on the watcher's news; called in its thread, as messages may be posted from any thread."""
        self.post_message(Looked(look))

    def on_looked(self, message: Looked) -> None:
        """Take in the news; the last picture stays while the daemon does not answer."""
        look = message.look
        if look.history is not None:
            self._memory.learn(look.history)
        if look.status is not None:
            self._status = look.status
            self._memory.take(look.status)
        if look.explanation is not None:
            self._explained = look.explanation
            self._read_on(look.explanation)
        self._problem = look.problem
        self._draw()

    def _draw(self) -> None:
        # a resize or news may come before the widgets exist and after they are gone
        with contextlib.suppress(NoMatches):
            self._draw_all()

    def _draw_all(self) -> None:
        status = self._status
        if not self.screen_stack:
            return
        found = panels.notices(status or Status(), self._problem)
        self._text("#notices", Text("\n").join(found[:4]))
        self._home("#notices").set_class(not found, "empty")
        if status is None:
            return
        width = max(20, self.size.width - 2)
        self._text("#head", panels.headline(status))
        self._text("#bar", panels.bar(status, width, self._glyphs))
        self._text("#legend", panels.legend(status, width, self._glyphs))
        if self.screen_stack[0].has_class("tall"):
            self._text("#sets", panels.sets(status, 10, width))
        self._draw_trainers(status)
        self._draw_detail()
        self._text("#feed", panels.decisions(self._memory.decisions, 20))

    def _draw_trainers(self, status: Status) -> None:
        ordered = sorted(status.trainers, key=lambda item: state_rank(item.state))
        shown = [item for item in ordered if self._matches(item)]
        table = self._home("#trainers", TrainerTable)
        table.show(shown, status.time_s)
        why = f"no trainer has {self._wanted!r}" if self._wanted else "no trainer is there: bft sbatch submits one"
        self._text("#none", Text(printable(why)))
        self._home("#none").display = not shown
        table.display = bool(shown)
        self._watcher.select(self._selected_id())

    def _draw_detail(self) -> None:
        trainer = self._selected()
        if trainer is None or self._status is None:
            self._text("#facts", Text(""))
            self._text("#curve", Text(""))
            return
        explained = self._explained.trainer if self._explained is not None else None
        known = explained.curve if explained is not None and explained.id == trainer.id else None
        facts, picture = self._home("#facts"), self._home("#curve")
        sizes = self._memory.sizes(trainer.id)
        now_s = self._status.time_s
        self._text("#facts", panels.facts(trainer, sizes, now_s, facts.size.width - 2, self._glyphs))
        if not trainer.id:
            self._text("#curve", Text("Slurm keeps others' jobs private here", style="dim"))
            return
        size = (picture.size.width - 2, picture.size.height)
        self._text("#curve", panels.curve(trainer, known, size, self._glyphs))

    def _home(self, selector: str, kind: type[Any] = Static) -> Any:
        """Return a widget of the main screen, whatever is open above it."""
        return self.screen_stack[0].query_one(selector, kind)

    def _text(self, selector: str, text: Text) -> None:
        """Change the text of a widget; an unchanged text causes no new layout."""
        if self._drawn.get(selector) != text:
            self._drawn[selector] = text
            self._home(selector).update(text)

    def _matches(self, item: Trainer) -> bool:
        words = f"{item.id} {item.name} {item.user} {item.account or ''} {item.state}".lower()
        return self._wanted.lower() in words

    def _selected(self) -> Trainer | None:
        """Return the trainer under the cursor."""
        if self._status is None:
            return None
        chosen = self._home("#trainers", TrainerTable).current
        shown = self._status.trainers
        return next((item for key, item in zip(keys(shown), shown, strict=True) if key == chosen), None)

    def _selected_id(self) -> str:
        chosen = self._selected()
        return "" if chosen is None else chosen.id

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        """Show the trainer that is now under the cursor."""
        with contextlib.suppress(NoMatches):  # the widgets may have gone since
            self._watcher.select(self._selected_id())
            self._draw_detail()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Explain the trainer when Enter is pressed."""
        self.action_explain()

    # Actions of the keys.

    def action_refresh(self) -> None:
        """Ask the daemon now."""
        self._watcher.hurry()

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(TextDialog("bft top", Text(_HELP)))

    def action_sort(self) -> None:
        """Sort by the next column; after the last one in the order of arrival."""
        table = self._home("#trainers", TrainerTable)
        order = (None, *COLUMNS)
        table.sorted_by = order[(order.index(table.sorted_by) + 1) % len(order)]
        self._draw()
        self._show_message(
            "in the order of arrival" if table.sorted_by is None else f"sorted by {table.sorted_by.title}"
        )

    def action_reverse(self) -> None:
        """Reverse the order."""
        table = self._home("#trainers", TrainerTable)
        table.reverse = not table.reverse
        self._draw()

    def action_filter(self) -> None:
        """Open the field for the filter."""
        field = self._home("#filter", Input)
        field.add_class("open")
        field.focus()

    def action_all(self) -> None:
        """Show all trainers again."""
        field = self._home("#filter", Input)
        field.value = ""
        field.remove_class("open")
        self._home("#trainers", TrainerTable).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the text is typed."""
        if event.input.id == "filter":
            self._wanted = event.value.strip()
            self._draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter and go back to the trainers."""
        if event.input.id == "filter":
            event.input.set_class(bool(self._wanted), "open")
            self._home("#trainers", TrainerTable).focus()

    def action_explain(self) -> None:
        """Show why the trainer under the cursor grew, stayed or shrank."""
        trainer = self._selected()
        if trainer is None or not trainer.id:
            self._show_message("choose a trainer first" if trainer is None else "Slurm keeps others' jobs private here")
            return
        page = TextDialog(f"{trainer.name} ({trainer.id})", Text("asking the daemon"))
        self._reading = (trainer.id, page)
        self.push_screen(page, lambda _: self._close())
        explained = self._explained
        if explained is not None and explained.trainer is not None and explained.trainer.id == trainer.id:
            self._read_on(explained)
        self._watcher.hurry()

    def _close(self) -> None:
        self._reading = None

    def _read_on(self, explanation: Explanation) -> None:
        """Keep the open page on a trainer up to date."""
        if self._reading is None or explanation.trainer is None or explanation.trainer.id != self._reading[0]:
            return
        text = panels.decisions_text(explanation.decisions)
        known, costs = explanation.trainer.curve, explanation.trainer.resize_costs
        for more in (known.text if known else "", costs.text if costs else ""):
            if more:
                text.append(f"\n{printable(more)}", "italic")
        self._reading[1].show_text(text)

    def action_nodes(self) -> None:
        """Show all nodes."""
        if self._status is not None:
            self.push_screen(NodesScreen(self._status.groups, self._explain_node))

    def _explain_node(self, name: str) -> None:
        page = TextDialog(name, Text("asking the daemon"))
        self.push_screen(page)

        def ask() -> Done:
            text = commands.node(self._client, name)
            return Done("", then=lambda: page.show_text(text))

        self._beside(ask)

    def action_pause(self) -> None:
        """Pause, or resume if everything is paused."""
        if self._status is None:
            return
        every = next((item for item in self._status.pauses if item.kind == "all"), None)
        if every is None:
            dialog = PauseDialog(commands.choices(self._selected()))
            self.push_screen(dialog, lambda pause: self._act(lambda: commands.pause(self._client, pause or {}), pause))
            return
        question = Confirm("Resume", Text(f"{printable(every.text)}\n\nLend nodes again?"))
        self.push_screen(question, lambda sure: self._act(lambda: commands.resume(self._client), sure))

    def action_tune(self) -> None:
        """Change settings."""
        if self._status is not None and self._status.settings:
            dialog = TuneDialog(self._status.settings)
            self.push_screen(dialog, lambda tune: self._act(lambda: commands.tune(self._client, tune or {}), tune))

    def _act(self, do: Callable[[], str], sure: object) -> None:
        """Carry out an action if it was confirmed, and show its result."""
        if sure:
            self._beside(lambda: Done(do()))

    def _beside(self, ask: Callable[[], Done]) -> None:
        """Send a request to the daemon in a separate thread."""

        def run() -> None:
            try:
                done = ask()
            except BftError as error:
                done = Done(str(error), wrong=True)
            self.post_message(done)

        threading.Thread(target=run, name="asking", daemon=True).start()

    def on_done(self, message: Done) -> None:
        """Show the result of a request."""
        if message.then is not None:
            message.then()
        if message.text:
            self._show_message(message.text, message.wrong)
        self._watcher.hurry()

    def _show_message(self, text: str, wrong: bool = False) -> None:
        """Show a line for some seconds."""
        line = Text(printable(text), style="bold #ff7b5a" if wrong else "bold")
        self._text("#message", line)
        self._home("#message").remove_class("empty")
        self._message_number += 1
        mine = self._message_number
        self.set_timer(_MESSAGE_S, lambda: self._hush(mine))

    def _hush(self, which: int) -> None:
        if which == self._message_number and self.screen_stack:
            self._home("#message").add_class("empty")


class PlainTop(Top):
    """The same application for terminals without Unicode."""

    CSS = style.css(plain=True)


def screen(client: Client, glyphs: Glyphs, every_s: float = EVERY_S) -> Top:
    """Create the application with characters that the terminal can show."""
    return (PlainTop if glyphs.plain else Top)(client, glyphs, every_s)
