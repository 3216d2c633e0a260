"""The live screen on a real daemon, by Textual's own pilot."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text
from textual.app import App
from textual.pilot import Pilot
from textual.screen import ModalScreen
from textual.widgets import DataTable
from textual.widgets.data_table import RowKey

from bftd.base.errors import ApiError
from bftd.client import Client
from bftd.ui.live.app import Top, screen
from bftd.ui.live.dialogs import PauseDialog, TextDialog, TuneDialog
from bftd.ui.live.glyphs import ASCII, UNICODE, Glyphs
from bftd.ui.live.nodes import NodesScreen
from bftd.ui.live.table import TrainerTable
from tests.bftd.builders import node
from tests.bftd.http.beside import Daemon, daemon
from tests.bftd.http.test_api import as_user
from tests.support.messages import excerpt, fragment, wording
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow

# Seldom enough for the pilot, which waits after each key until nothing is left to draw.
EVERY_S = 0.3
NODES = {f"n{at}": node(f"n{at}") for at in range(1, 9)} | {
    "n8": node("n8", "ALLOCATED"),
    "n9": node("n9", "IDLE", "DRAIN", reason="disk"),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with daemon(tmp_path_factory.mktemp("daemon")) as there:
        fill(there)
        yield there


def fill(there: Daemon) -> None:
    there.see(NODES)
    for id_, name in (("run-h-1", "resnet"), ("run-h-2", "[red]gpt[/red]"), ("run-h-3", "a-very-long-name-of-a-job")):
        there.train(id_, name=name, nodes_max=4)
    there.see(NODES)
    for id_, rate in (("run-h-1", 100.0), ("run-h-2", 300.0), ("run-h-3", 200.0)):
        there.work(id_, rate)
    there.see(NODES)


class Screen:
    """The screen under test, with what it shows as text."""

    def __init__(self, top: Top, pilot: Pilot[None]) -> None:
        self.top = top
        self.pilot = pilot

    @property
    def text(self) -> str:
        """All that is drawn, line by line."""
        return "\n".join("".join(part.text for part in line) for line in self.top.screen._compositor.render_strips())

    @property
    def table(self) -> TrainerTable:
        found: TrainerTable = self.top.screen_stack[0].query_one(TrainerTable)
        return found

    async def until(self, seen: Callable[[], Any], most_s: float = STILL_S) -> None:
        """Wait until it is so."""
        end_s = time.monotonic() + most_s
        while not seen():
            assert time.monotonic() < end_s, self.text
            await self.pilot.pause(0.02)

    async def shows(self, *texts: str) -> None:
        """Wait until all of these are drawn."""
        await self.until(lambda: all(text in self.text for text in texts))

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)

    async def type(self, text: str) -> None:
        await self.pilot.press(*("space" if letter == " " else letter for letter in text))


@asynccontextmanager
async def shown(
    client: Client | str, size: tuple[int, int] = (80, 24), glyphs: Glyphs = UNICODE
) -> AsyncIterator[Screen]:
    """A screen of this size."""
    top = screen(Client(client) if isinstance(client, str) else client, glyphs, EVERY_S)
    async with top.run_test(size=size) as pilot:
        yield Screen(top, pilot)


@pytest.fixture
def seen(served: Daemon) -> AbstractAsyncContextManager[Screen]:
    return shown(served.address)


@pytest.mark.parametrize("size", [(80, 24), (200, 60), (60, 16)])
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
async def test_it_shows_nodes_trainers_and_the_last_decision(
    served: Daemon, size: tuple[int, int], glyphs: Glyphs
) -> None:
    async with shown(served.address, size, glyphs) as seen:
        await seen.shows("1 regular", "7 leased", "1 away", "run-h-1", "[red]gpt[/r", "300", "p Pause")
        if size[1] > 20:
            await seen.shows("9 nodes", "q Quit")
            await seen.shows("resnet  run-h-1 ann", "samples/s: ", "last hour", wording("top.app.decisions_head"))
        if size[0] > 100:
            await seen.shows("n9", "is draining: disk", "ACCOUNT", "RANGE")
        assert len(seen.text.splitlines()) == size[1]
        assert glyphs is UNICODE or seen.text.isascii()


async def test_regression_a_size_or_a_choice_that_came_while_there_were_no_widgets_ended_it(seen: Screen) -> None:
    await seen.shows("run-h-1")
    highlighted = DataTable.RowHighlighted(seen.table, 0, RowKey("run-h-1"))
    await seen.top.screen.remove_children()
    await seen.pilot.resize_terminal(60, 16)
    seen.top.post_message(highlighted)
    await seen.pilot.pause()


async def test_the_cursor_stays_on_its_trainer_whatever_order_they_come_in(seen: Screen) -> None:
    await seen.shows("run-h-3")
    await seen.press("down", "down")
    await seen.until(lambda: seen.table.current == "run-h-3")
    await seen.shows("a-very-long-name-of-a-job  run-h-3")
    for _ in range(7):  # by samples/s, the fastest first
        await seen.press("s")
    await seen.shows("SAMPLES/v", "sorted by SAMPLES/S")
    lines = [line for line in seen.text.splitlines() if " running " in line and "run-h-" in line[:9]]
    assert [line.split()[0] for line in lines] == ["run-h-2", "run-h-3", "run-h-1"]
    assert seen.table.current == "run-h-3"
    await seen.press("S")
    await seen.shows("SAMPLES/^")
    assert seen.table.current == "run-h-3"
    await seen.press("slash")
    await seen.type("zz")
    await seen.shows(wording("top.app.no_trainer_has", wanted="zz"))
    await seen.press("escape")
    await seen.shows("run-h-1")
    await seen.press("slash")
    await seen.type("GPT")
    await seen.press("enter")
    await seen.until(lambda: seen.table.row_count == 1 and seen.table.current == "run-h-2")


async def test_it_explains_a_trainer_and_a_node(seen: Screen) -> None:
    await seen.shows("run-h-1")
    await seen.press("enter")
    await seen.shows("resnet (run-h-1)", "resnet starts on ", "Esc goes back")
    await seen.press("escape", "question_mark")
    await seen.shows("why it grew, stayed or shrank")
    await seen.press("escape", "n")
    await seen.shows("Nodes: ", "trainer run-h-1: working", "draining")
    await seen.press("enter")
    await seen.shows("NODE", "n8")
    await seen.press("enter")
    await seen.until(lambda: isinstance(seen.top.screen, TextDialog) and "n8 runs a job" in seen.text)
    await seen.press("escape", "escape", "escape")
    await seen.shows("q Quit")


async def test_a_pause_asks_for_a_reason_and_once_more_and_is_lifted_by_the_same_key(
    served: Daemon, seen: Screen
) -> None:
    await seen.shows("run-h-1")
    await seen.press("p", "enter")
    await seen.shows(
        "give the reason", "[ ] also ask back", "(*) everything", "( ) " + wording("top.asking.trainers_of", user="ann")
    )
    await seen.type("dust")
    await seen.press("tab", "space", "enter")
    await seen.shows(
        "[x] also ask back", excerpt("top.dialogs.enter_pauses", back=fragment("everything and asks back"))
    )
    await seen.press("space", "enter")
    await seen.shows("[ ] also ask back", excerpt("top.dialogs.enter_pauses", back="everything"))
    assert not served.do(lambda service: service.state.pauses)
    await seen.press("enter")
    await seen.shows(wording("core.sentences.paused", what="! everything", by="root", why="dust"))
    await seen.press("p")
    await seen.shows("Lend nodes again?")
    await seen.press("n", "p", "y")
    await seen.until(lambda: not served.do(lambda service: service.state.pauses))


async def test_what_an_administrator_alone_may_is_refused_in_one_line(
    served: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_user(monkeypatch, "ann")
    async with shown(served.address) as seen:
        await seen.shows("run-h-1")
        await seen.press("p")
        await seen.type("x")
        await seen.press("enter", "enter")
        await seen.shows("only administrators may pause and resume, and ann is none")
        assert not served.do(lambda service: service.state.pauses)


async def test_settings_are_tuned_in_a_form_that_checks_them(served: Daemon) -> None:
    async with shown(served.address) as seen:
        await seen.shows("run-h-1")
        await seen.press("t", "enter")
        await seen.shows(wording("top.dialogs.nothing_changed"), "t_fwd_s", "120.0")
        await seen.press("tab", "tab")
        await seen.shows("Forward-looking time")
        await seen.type("x")
        await seen.press("enter")
        await seen.shows(excerpt("top.dialogs.not_a_number", name="t_fwd_s"))
        await seen.press("end", "ctrl+u")
        await seen.type("90")
        await seen.press("enter")
        await seen.shows(excerpt("top.dialogs.enter_changes", told=fragment("t_fwd_s 120.0 to 90.0")))
        await seen.press("enter")
        await seen.shows("tuned: t_fwd_s = 90.0")
        assert served.do(lambda service: service.state.settings.decide.t_fwd_s) == 90.0
    Client(served.address).tune(t_fwd_s=120.0)


async def test_a_daemon_that_stops_and_comes_back_is_told_in_one_notice() -> None:
    # a path that fits into a line: of a longer one Textual shows no more than the line before it
    # a thread that still reads the ledger as the daemon ends may make SQLite's files anew
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, daemon(folder := Path(name)) as there:
        fill(there)
        async with shown(there.address) as seen:
            await seen.shows("run-h-1")
            await asyncio.to_thread(there.stop)
            # wherever the lines of the notice end
            await seen.until(lambda: "(trying again)" in " ".join(seen.text.split()))
            await seen.shows("! no daemon answers at", "run-h-1")
            with daemon(folder) as again:
                again.see(NODES)
                await seen.until(lambda: "trying again" not in " ".join(seen.text.split()))
                await seen.shows("9 nodes", "run-h-1")


class Older(Client):
    """A client whose daemon tells only what the first ones did."""

    def _get(self, path: str) -> dict[str, Any]:
        if "/history" in path:
            raise ApiError("not found", 404)
        told = super()._get(path)
        if "/explain" in path:
            told["trainer"] = {name: value for name, value in told["trainer"].items() if name != "curve"}
        kept = ("time_s", "version", "mode", "node_groups", "trainers", "decisions", "settings")
        told = {name: told[name] for name in (*kept, "trainer") if name in told}
        for group in told.get("node_groups", ()):
            group.pop("kind")
            group.pop("count")
        for trainer in told.get("trainers", ()):
            for name in ("efficiency", "total_steps", "expected_end_s", "account", "on"):
                trainer.pop(name, None)
        return told


async def test_an_older_daemon_is_shown_as_far_as_it_tells(served: Daemon) -> None:
    async with shown(Older(served.address)) as seen:
        await seen.shows("9 nodes", "1 regular", "7 leased", "run-h-2", "snapshot none yet")
        await seen.press("e")
        await seen.shows("resnet starts on ")


def test_quitting_does_not_wait_for_an_answer(served: Daemon) -> None:
    class Slow(Client):
        def _get(self, path: str) -> dict[str, Any]:
            begun.append(path)
            if is_over.wait(2 * STILL_S):
                return {}
            waited_for.append(path)
            return super()._get(path)

    begun: list[str] = []
    waited_for: list[str] = []
    is_over = threading.Event()

    async def quits() -> None:
        async with shown(Slow(served.address)) as seen:
            await seen.until(lambda: begun)
            await seen.press("q")

    try:
        asyncio.run(quits())
        assert not waited_for
    finally:
        is_over.set()


@pytest.mark.parametrize(
    "opened",
    [TextDialog("a", Text("b")), PauseDialog({"all": {}}), TuneDialog({}), NodesScreen([], print)],
    ids=lambda screen: type(screen).__name__,
)
async def test_a_dialog_that_opens_while_the_program_ends_does_not_fail(opened: ModalScreen[Any]) -> None:
    app: App[None] = App()
    async with app.run_test():
        app.exit()
        await app.push_screen(opened)
