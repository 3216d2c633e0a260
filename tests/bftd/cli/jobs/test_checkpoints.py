"""`bft checkpoints`: what it shows, and what it removes, without a daemon."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from bftd.cli.main import bft
from tests.elastic.store.test_catalogue import running, saved
from tests.support.messages import fragment, says

ENDED = "8@hpc.ended-until-20990101T000000Z"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BFT_STATE_DIR", str(tmp_path / "states"))
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "states"


def checkpoints(*words: str) -> Result:
    return CliRunner().invoke(bft, ["checkpoints", *words])


def refused(*words: str) -> str:
    done = checkpoints(*words)
    assert getattr(done.exception, "exit_code", None) == 2, done.output
    said = str(done.exception)
    assert len(said.splitlines()) == 1
    return said


def test_checkpoints_are_shown_with_what_has_become_of_their_trainers(root: Path) -> None:
    saved(root, "7", 1200, "bert.py")
    saved(root, ENDED, 40)
    (root / "9").symlink_to("7")
    store = running(root, "run-login1-4.u0.00ff", 3)
    shown = [line.split(maxsplit=2) for line in checkpoints("ls").output.splitlines()]
    told = json.loads(checkpoints("ls", "--json").output)
    store.close()
    assert shown[0][0] == "ID"
    by_id = {line[0]: line for line in shown[1:]}
    assert by_id["7"][1:] == ["bert.py", by_id["7"][2]]
    assert by_id["7"][2].split()[:2] == ["stopped", "1200"]
    assert by_id["8@hpc"][2].startswith("ended, kept until 2099-01-01 00:00")
    assert by_id["run-login1-4.u0.00ff"][2].startswith("running")
    assert by_id["9"][2].startswith("unreadable: ")
    assert told["folder"] == str(root)
    [seven] = [item for item in told["checkpoints"] if item["id"] == "7"]
    assert (seven["name"], seven["step"], seven["samples"], seven["size_bytes"]) == ("bert.py", 1200, 12000, 5)
    assert {item["state"] for item in told["checkpoints"]} == {"stopped", "ended", "running", "unreadable"}


def test_the_fields_have_their_old_names_beside_the_new_ones_until_1_1(root: Path) -> None:
    saved(root, "7")
    told = json.loads(checkpoints("ls", "--json").output)
    assert told["states"] == told["checkpoints"]
    assert [item["by_path"] for item in told["states"]] == [item["distributed_folder"] for item in told["checkpoints"]]


def test_where_nothing_was_saved_there_is_nothing_to_show(root: Path) -> None:
    assert json.loads(checkpoints("ls", "--json").output) == {
        "format": 1,
        "folder": str(root),
        "checkpoints": [],
        "states": [],
    }
    assert not root.exists()


def test_what_was_kept_long_enough_is_gone_with_the_next_look(root: Path) -> None:
    saved(root, "8.ended-until-20200101T000000Z")
    assert json.loads(checkpoints("ls", "--json").output)["checkpoints"] == []
    assert os.listdir(root) == []


def test_checkpoints_are_removed_by_id_by_what_has_become_of_them_and_by_age(root: Path) -> None:
    for name in ("5", "6", "7", ENDED):
        saved(root, name)
    [kept] = (root / "6").glob("state-5-50-5-*.pt")
    os.utime(kept, (1.0, 1.0))
    assert checkpoints("rm", "5").output == "removed 5\n"
    assert checkpoints("rm", "--older-than", "now-7days").output == "removed 6\n"
    assert checkpoints("rm", "--ended").output == f"removed {ENDED}\n"
    assert os.listdir(root) == ["7"]


def test_a_running_trainers_checkpoint_is_never_removed_and_the_others_named_with_it_are(root: Path) -> None:
    saved(root, "5")
    store = running(root, "6")
    assert says(refused("rm", "6", "5", "--force"), "elastic.shelf.running", name=6)
    assert checkpoints("rm", "--older-than", "now+1hour").output == ""
    store.close()
    assert os.listdir(root) == ["6"]


def test_regression_a_checkpoint_was_not_found_by_the_id_that_it_was_shown_with(root: Path) -> None:
    saved(root, ENDED)
    assert checkpoints("ls").output.splitlines()[1].split()[0] == "8@hpc"
    assert checkpoints("rm", "8@hpc").output == f"removed {ENDED}\n"


def test_regression_a_users_own_folders_beside_his_checkpoints_were_closed_shown_and_removed(root: Path) -> None:
    """As when BFT_STATE_DIR is his home."""
    saved(root, "7")
    (root / "data").mkdir()
    (root / "data").chmod(0o755)
    (root / "data" / "lock").write_text("his own")
    (root / "thesis").mkdir(mode=0o755)
    (root / "notes.txt").write_text("his own")
    assert [line.split()[0] for line in checkpoints("ls").output.splitlines()] == ["ID", "7"]
    assert (root / "data").stat().st_mode & 0o777 == 0o755
    assert says(refused("rm", "data"), "cli.checkpoints.none_called_so", text=fragment("data"))
    assert checkpoints("rm", "--older-than", "now+1hour").output == "removed 7\n"
    assert sorted(os.listdir(root)) == ["data", "notes.txt", "thesis"]


def test_what_is_meant_has_to_be_said_and_to_be_there(root: Path) -> None:
    saved(root, "7")
    saved(root, "7@hpc")
    assert says(refused("rm"), "cli.checkpoints.none_named")
    assert "exclude" in refused("rm", "7", "--ended")
    assert "no checkpoint 8" in refused("rm", "8", "7@hpc")
    assert checkpoints("rm", "7").output == "removed 7\n"
    saved(root, "7@one")
    assert says(refused("rm", "7"), "cli.checkpoints.ambiguous", text=7, names=fragment("7@hpc, 7@one"))
    assert sorted(os.listdir(root)) == ["7@hpc", "7@one"]


def test_a_checkpoint_goes_by_its_trainers_name_where_one_alone_has_it(root: Path) -> None:
    for id_, title in (("7", "mine"), ("8", "mine"), ("9", "other")):
        saved(root, id_, title=title)
    assert says(refused("rm", "mine"), "cli.checkpoints.ambiguous", text="mine", names=fragment("7, 8"))
    assert checkpoints("rm", "other").output == "removed 9\n"
    assert sorted(os.listdir(root)) == ["7", "8"]


def test_a_folder_that_is_not_the_users_alone_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.mkdir()
    root.chmod(0o770)
    assert f"chmod go-w {root}" in refused("ls")
    monkeypatch.setenv("BFT_STATE_DIR", "states")
    assert "absolute path" in refused("ls")
