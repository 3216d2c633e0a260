"""The live view."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from bftd.protocol.reports import ProgressReport
from bftd.service.status import overview, percentiles
from bftd.view import render
from tests.bftd.builders import NOW_S, Core, lease, registration


def drawn(status: dict[str, Any]) -> str:
    """The view as plain text."""
    out = io.StringIO()
    Console(file=out, width=160, color_system=None).print(render(status))
    return out.getvalue()


def status_of(core: Core) -> dict[str, Any]:
    """A status as the API answers it."""
    decisions = [{"at_s": core.time_s, "trainer": None, "text": text} for text in core.sentences()]
    return overview(core.state, core.time_s, "1.0", "live", decisions, [0.5, 0.25])


def test_nodes_are_folded_by_what_they_do_and_trainers_show_size_and_speed() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=3, name="train-a"))
    core.pool("n1", "n2", "n3", "n4", "n5")
    core.place_all()
    core.report("1", ProgressReport(NOW_S, step=12, samples=9.0, samples_per_s=33.3, nodes=3, loss=0.125))
    text = drawn(status_of(core))
    assert "n[1-3]" in text
    assert "n[4-5]" in text
    row = next(line for line in text.splitlines() if line.startswith("train-a 1"))
    assert row.split()[2:] == ["ann", "horovod", "running", "3", "1-3", "12", "33.3", "0.125", "0", "0", "n[1-3]"]
    assert "train-a starts on 3 nodes (n[1-3])" in text
    assert "give-back 0.25 s median, 0.50 s most, 2 times" in text


def test_names_with_markup_are_shown_as_they_are() -> None:
    core = Core()
    core.arrive(registration("1", name="[bold]x[/nonsense]"))
    core.pool("n1", hold="job 9 waits without a plan")
    text = drawn(status_of(core))
    assert "[bold]x[/nonsense]" in text
    assert "job 9 waits without a plan" in text


def test_an_empty_daemon_can_be_shown() -> None:
    assert "snapshot none yet" in drawn(status_of(Core()))


def test_a_finished_trainer_shows_its_exit_code() -> None:
    core = Core()
    core.arrive(registration("1"))
    core.pool("n1")
    (item,) = core.leases("1")
    core.report("1", lease(item.id, "ended"))
    core.finish("1", exit_code=7)
    assert "finished (7)" in drawn(status_of(core))


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentiles([]) == {"p50": None, "p99": None, "max": None, "count": 0}
    assert percentiles([3.0]) == {"p50": 3.0, "p99": 3.0, "max": 3.0, "count": 1}
    assert percentiles([float(value) for value in range(1, 201)]) == {
        "p50": 100.0,
        "p99": 198.0,
        "max": 200.0,
        "count": 200,
    }
