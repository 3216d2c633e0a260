"""The live view."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from bftd.base import command, tables
from bftd.base.folding import Folds, folded
from bftd.cli import common
from bftd.core.model.domain import Settings
from bftd.daemon import log_format
from bftd.protocol.reports import ProgressReport
from bftd.service.status import overview, percentiles
from bftd.ui.status import render
from tests.bftd.builders import NOW_S, Core, lease, registration
from tests.support.messages import says


def drawn(status: dict[str, Any], width: int = 160, every: bool = False) -> str:
    """The view as plain text."""
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(render(status, every))
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
    assert "n[3-5]" in text
    assert "n[1-2]" in text
    row = next(line for line in text.splitlines() if line.split()[:2] == ["train-a", "1"])
    assert row.split()[2:] == ["ann", "horovod", "running", "3", "1-3", "12", "33.3", "0.125", "0", "0", "n[3-5]"]
    assert says(text, "core.sentences.starts", count="3 nodes", nodes="n[3-5]")
    assert says(text, "bftd.view.give_back", p50=0.25, max="0.50", count=2)


def test_regression_trainers_that_ended_stood_above_those_that_run() -> None:
    core = Core()
    for id_ in ("1", "2", "3", "4"):
        core.arrive(registration(id_, nodes_max=1, name=f"train-{id_}"))
    core.pool("n1")
    core.place_all()
    status = status_of(core)
    for trainer, state in zip(status["trainers"], ("finished", "suspended", "waiting", "running"), strict=True):
        trainer |= {"state": state, "exit_code": 0 if state == "finished" else None}

    def names(text: str) -> list[str]:
        return [line.split()[0] for line in text.splitlines() if line.startswith("train-")]

    text = drawn(status)
    assert names(text) == ["train-4", "train-3", "train-2"]
    assert says(text, "bftd.view.ended", count="1 trainer", name="train-1", state="finished (0)")
    status["trainers"][1] |= {"state": "finished", "exit_code": 1}
    assert says(drawn(status), "bftd.view.ended", count="2 trainers", name="train-2", state="finished (1)")
    status["trainers"][1] |= {"state": "suspended"}
    whole = drawn(status, every=True)
    assert names(whole) == ["train-4", "train-3", "train-2", "train-1"]
    assert not says(whole, "bftd.view.ended")


def test_training_comes_first_then_what_is_held_and_what_held_nodes_do_that_do_not_train() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=2))
    core.pool("n1", "n2")
    core.place_all("placed")
    core.pool("n1", "n2")  # 2 node-seconds in the pool and not held
    core.pool("n1", "n2", after_s=3)  # 6 of starting
    core.report("1", *(lease(item.id, "working") for item in core.leases("1")))
    core.pool("n1", "n2", after_s=6)  # 12 of training
    status = status_of(core)
    assert {what: status[f"{what}_node_seconds"] for what in ("pool", "held", "training", "starting", "resizing")} == {
        "pool": 20.0, "held": 18.0, "training": 12.0, "starting": 6.0, "resizing": 0.0
    }  # fmt: skip
    assert status["used_node_seconds"] == status["held_node_seconds"]
    shares = {"training": "60%", "starting": "30%"}
    said = ", ".join(f"{what} {share}" for what, share in shares.items())
    assert says(drawn(status), "bftd.view.used", held="90%", parts=said)
    older = {key: value for key, value in status.items() if key not in ("starting_node_seconds", "held_node_seconds")}
    assert says(drawn(older), "bftd.view.used", held="90%", parts="training 60%")


def test_names_with_markup_are_shown_as_they_are() -> None:
    core = Core()
    core.arrive(registration("1", name="[bold]x[/nonsense]"))
    hold = "job 9 waits without a plan"
    core.pool("n1", hold=hold)
    text = drawn(status_of(core))
    assert "[bold]x[/nonsense]" in text
    assert hold in text


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


HEADERS = ("trainer", "id", "user", "account", "back-end", "state", "nodes", "range", "step", "samples/s", "loss",
           "resizes", "suspends", "on")  # fmt: skip
IDS = ("3812907", "run-login01-12345", "3812911", "3812940")
STATES = ("running", "suspended", "waiting", "finished (137)")


def busy() -> dict[str, Any]:
    """What a site of 64 nodes shows, with names as long as people make them."""
    core = Core(Settings().changed(trainers_per_user=0))
    names = [f"node{number:03d}" for number in range(1, 65)]
    for id_, state in zip(IDS, STATES, strict=True):
        job_name = f"resnet152-imagenet21k-finetune-{state.split()[0]}-ablation-no-warm-up-seed3"[:60]
        core.arrive(registration(id_, nodes_max=24, name=job_name, user="bartholomew.featherstonehaugh"))
    core.pool(*names[:40])
    core.place_all()
    progress = ProgressReport(NOW_S, step=123456, samples=9.0, samples_per_s=21345.6, nodes=3, loss=0.012345)
    core.report(IDS[0], progress)
    shown = status_of(core)
    for item, state in zip(shown["trainers"], STATES, strict=True):
        item |= {"state": state.split()[0], "exit_code": 137 if "(" in state else None}
        item |= {"backend": "torchrun", "account": "climate-modelling-2026"}
    for number, node in enumerate(shown["nodes"]):
        if number % 7 == 3:
            node |= {"trainer": None, "in_pool": False, "why": f"job {3800000 + number % 3} starts here in 12 s"}
    return shown


@settings(max_examples=60, deadline=None)
@given(width=st.integers(60, 250))
def test_at_no_width_is_a_header_an_id_or_a_state_cut(width: int) -> None:
    status = busy()
    text = drawn(status, width, every=True)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    header = next(line for line in lines if line.startswith("trainer"))
    # At 60 columns the line that names them is itself folded.
    _, more, hidden = text.partition("more at ")
    missing = " ".join(hidden.partition("Last decisions")[0].partition(": ")[2].split()).split(", ") if more else []
    assert header.split() == [name for name in HEADERS if name not in missing]
    for identifier in (*IDS, *(node["trainer"] for node in status["nodes"] if node["trainer"])):
        assert identifier in text.split()
    if width >= 80:
        assert all(state in text for state in STATES)
    if more:
        needs = int(hidden.split()[0])
        assert needs > width
        assert "more at " not in drawn(status, needs, every=True)


def test_at_80_columns_who_trains_where_and_how_fast_is_shown_and_the_rest_is_named() -> None:
    lines = drawn(busy(), 80, every=True).splitlines()
    header = next(line for line in lines if line.startswith("trainer"))
    assert header.split() == ["trainer", "id", "user", "state", "nodes", "range", "samples/s"]
    assert lines[lines.index(header) + 5].endswith("columns: account, back-end, step, loss, resizes, suspends, on")


def test_where_it_fits_nothing_is_cut() -> None:
    text = drawn(busy(), 10_000)
    assert "\u2026" not in text
    assert "more at" not in text
    assert "resnet152-imagenet21k-finetune-running-ablation-no-warm-up-s" in text
    assert "bartholomew.featherstonehaugh" in text


def test_accounts_have_a_column_only_where_slurm_knows_any() -> None:
    core = Core()
    core.arrive(registration("1"))
    assert "account" not in drawn(status_of(core), 250)


def test_who_paused_what_and_when_it_begins_again_is_shown() -> None:
    core = Core(Settings().changed(harvest_at="Mon 20:00-24:00", max_nodes=2))
    core.pause("node n1", "node n2", why="new disks", release=True)
    core.pool("n1", "n2", "n3")
    text = drawn(status_of(core))
    assert says(
        text, "core.sentences.several_paused", what="nodes n[1-2]", by="root", why="new disks (since 1970-01-01"
    )
    assert says(text, "bftd.view.asked_back")
    assert says(text, "core.sentences.begins_again", when="Mon 20:00")


def test_a_bound_and_an_overdue_node_are_shown() -> None:
    core = Core(Settings().changed(max_nodes=1))
    core.arrive(registration("1"))
    core.pool("n1", "n2")
    core.place_all()
    core.pause("node n2", release=True)
    core.pool("n1", "n2", after_s=9.0)
    text = drawn(status_of(core))
    assert says(text, "core.sentences.bounded", most="1 node", by="max_nodes = 1")
    assert says(text, "service.steered.overdue", node="n2", since_s=9)


HOSTILE = "x\x1b]0;pwned\x07\x1b[2J\u202egnp.exe\x9b31m\u2066"


def texts(value: Any) -> Any:
    """The JSON with each text replaced by one that commands terminals."""
    if isinstance(value, dict):
        kept = {"mode", "lease_state", "kind"}
        return {name: item if name in kept else texts(item) for name, item in value.items()}
    return [texts(item) for item in value] if isinstance(value, list) else HOSTILE if isinstance(value, str) else value


def test_regression_what_others_name_commanded_the_terminal() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=3, name="train-a"))
    core.pool("n1", "n2", hold="job 9 waits")
    core.place_all()
    status = texts(json.loads(json.dumps(status_of(core))))
    status["nodes"] = [node | {"name": f"n{number}"} for number, node in enumerate(status["nodes"])]  # Slurm's own
    status["orphan_jobs"] = [{"job_id": HOSTILE, "user": HOSTILE, "account": HOSTILE, "nodes": ["n1"], "since_s": 1.0} |
                        {"cancelled": False}]  # fmt: skip
    shadow = {"waiting": [{"id": HOSTILE, "name": HOSTILE, "user": HOSTILE, "text": HOSTILE}]}
    shadow |= {"since_s": 0.0, "idle_node_seconds": 0.0, "efficiency": None, "preemptions": 0, "nodes_taken": 0}
    for seen in (status, status | {"nodes": [], "node_groups": [dict(status["nodes"][0], nodes=HOSTILE)]} | {
        "trainers": [item | {"on": HOSTILE} for item in status["trainers"]]
    }):  # fmt: skip
        text = drawn(seen)
        assert "pwned" in text
        assert all(letter.isprintable() or letter == "\n" for letter in text)


def test_lines_of_tables_errors_and_the_log_command_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["bft"])
    shown = [*tables.lines([tables.Column("NAME")], [[HOSTILE]], 80)]
    shown += [line for block in tables.blocks([tables.Column("NAME")], [[HOSTILE]], 80) for line in block]
    record = logging.LogRecord("bftd", logging.INFO, "", 0, "%s waits", (HOSTILE,), None)
    shown += log_format.formatter({}).format(record).splitlines()
    shown += log_format.JournalFormatter("%(message)s").format(record).splitlines()
    common.echo([HOSTILE])

    @click.command()
    def fails() -> None:
        raise click.ClickException(HOSTILE)

    with pytest.raises(SystemExit):
        command.run(fails, "bft")
    told = capsys.readouterr()
    shown += [*told.out.split("\n"), *told.err.split("\n")]
    assert len([line for line in shown if "pwned" in line]) == 6
    assert all(line.isprintable() for line in shown)


def test_the_view_of_folded_nodes_is_that_of_all_nodes() -> None:
    core = Core()
    core.arrive(registration("1", nodes_max=3, name="train-a"))
    core.arrive(registration("2", nodes_max=2, name="train-b"))
    core.pool("n1", "n2", "n3", "n4", "n5", "n6")
    core.place_all()
    status = status_of(core)
    assert "nodes" not in folded(status, Folds())
    assert drawn(folded(status, Folds())) == drawn(status)
