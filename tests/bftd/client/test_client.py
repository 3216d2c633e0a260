"""The client for notebooks against a real daemon on a unix socket."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from bftd.base.errors import ApiError, BftError, DaemonUnreachable, TimedOut, UsageError
from bftd.client import Client, Trainer
from tests.bftd.http.beside import Daemon, daemon
from tests.support.messages import pattern
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with daemon(tmp_path_factory.mktemp("daemon")) as there:
        there.see(None, "n1", "n2", "n3")
        there.train("run-h-1", nodes_max=2)
        there.see(None, "n1", "n2", "n3")
        there.work("run-h-1", 120.0)
        there.see(None, "n1", "n2", "n3")
        yield there


@pytest.fixture
def client(served: Daemon) -> Client:
    return Client(served.address)


def test_a_status_has_types(client: Client) -> None:
    status = client.status()
    assert status.mode == "live"
    assert {(group.kind, group.count) for group in status.groups} == {("leased", 2), ("idle", 1)}
    assert [window.window_s for window in status.windows] == [3600.0, 86400.0, 604800.0]
    (trainer,) = status.trainers
    assert (trainer.working, trainer.samples_per_s, trainer.nodes_min, trainer.nodes_max) == (2, 120.0, 1, 2)
    assert trainer.efficiency is not None
    assert 0.5 < trainer.efficiency < 1.0  # what one node makes is a concave guess
    assert status.decisions[-1].text.startswith("train-run-h-1 ")
    assert status.settings["t_fwd_s"] == 120.0


def test_nodes_trainers_and_explanations_come_as_rows(client: Client) -> None:
    assert sorted(node.name for node in client.nodes()) == ["n1", "n2", "n3"]
    assert [trainer.id for trainer in client.trainers()] == ["run-h-1"]
    told = client.explain("run-h-1")
    assert told.trainer is not None
    assert told.trainer.curve is not None
    assert told.trainer.curve.measured[0].points == ((2, 120.0),)
    assert told.trainer.curve.learned is not None
    learned = dict(told.trainer.curve.learned.points)
    assert learned[2] == pytest.approx(120.0)
    assert 60.0 < learned[1] < 120.0
    assert told.trainer.efficiency == pytest.approx(learned[2] / (2 * learned[1]))
    assert told.decisions
    assert client.trainer("run-h-1").curve == told.trainer.curve


def test_events_are_asked_on_behind_the_last(client: Client) -> None:
    first = client.events(limit=2)
    rest = client.events(after=first[-1].rowid)
    assert len(first) == 2
    assert rest[0].rowid > first[-1].rowid
    assert {"registered", "granted"} <= {event.kind for event in (*first, *rest)}


def test_usage_takes_moments_of_any_kind(client: Client) -> None:
    now = datetime.now(timezone.utc)
    for since in (timedelta(hours=2), now - timedelta(hours=2), time.time() - 7200):
        told = client.usage(since, by=("user", "account"))
        assert told.since_s == pytest.approx(time.time() - 7200, abs=3700)
        assert [(row.user, row.account) for row in told.rows] == [("ann", "")]
    (by_user,) = client.usage().rows
    assert (by_user.user, by_user.account) == ("ann", None)


def test_history_says_what_nodes_were_and_how_large_trainers(client: Client) -> None:
    told = client.history(timedelta(minutes=5), step_s=60.0)
    assert told.step_s == 60.0
    assert set(told.points[-1].nodes) == {"regular", "planned", "leased", "idle", "away"}
    assert [window.window_s for window in told.windows] == [3600.0, 86400.0, 604800.0]
    assert client.history().points
    assert all(at_s > told.since_s - 60 for at_s, _ in told.sizes("run-h-1"))
    assert "leased" in told._repr_html_()


def test_what_is_not_there_is_one_line(client: Client, tmp_path: Path) -> None:
    with pytest.raises(ApiError, match="no trainer 4711 is known") as refused:
        client.explain("4711")
    assert refused.value.status == 404
    with pytest.raises(DaemonUnreachable, match="no daemon answers"):
        Client(str(tmp_path / "nobody")).status()
    with pytest.raises(UsageError, match="until must be"):
        client.wait("run-h-1", until="started")  # type: ignore[arg-type]


def test_the_daemon_is_found_as_bft_finds_it(served: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BFTD_SOCKET", served.address)
    assert Client().address == served.address
    assert Client().status().trainers


def test_pauses_and_settings_are_changed_and_put_back(client: Client) -> None:
    (paused,) = client.pause("a test", nodes=["n3"])
    assert (paused.kind, paused.names, paused.why) == ("node", ("n3",), "a test")
    assert client.status().pauses == (paused,)
    assert client.resume(nodes=["n3"]) == ()
    assert client.tune(t_fwd_s=90.0)["t_fwd_s"] == 90.0
    client.tune(t_fwd_s=120.0)


def test_one_waits_for_nodes_and_for_the_end(served: Daemon, client: Client) -> None:
    assert client.wait("run-h-1", until=2, timeout_s=5).working == 2
    with pytest.raises(TimedOut, match="is running on 2 nodes after"):
        client.wait("run-h-1", until=3, timeout_s=0.05, every_s=0.02)
    served.train("run-h-2", nodes_max=1)
    ended: list[Trainer] = []
    waits = threading.Thread(target=lambda: ended.append(client.wait("run-h-2", timeout_s=20, every_s=0.02)))
    waits.start()
    served.finish("run-h-2", 3)
    waits.join(STILL_S)
    assert [(item.state, item.exit_code) for item in ended] == [("finished", 3)]
    with pytest.raises(BftError, match=pattern("client.daemon.finished_meanwhile", seen="exit code 3", wanted=9)):
        client.wait("run-h-2", until=9, timeout_s=5)


def test_what_a_newer_daemon_has_is_refused_by_an_older_one_in_one_line(client: Client) -> None:
    with pytest.raises(BftError) as refused:
        client._get("/v1/what-comes-later")
    assert "\n" not in str(refused.value)


def test_importing_it_loads_nothing_heavy() -> None:
    program = (
        "import sys; from bftd.client import Client; "
        "print([name for name in ('rich', 'textual', 'numpy', 'aiohttp', 'ClusterShell') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
