"""What a trainer begins with: its own checkpoint when Slurm runs it again, another's when told so, else nothing."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from elastic.base.errors import UsageError
from elastic.store import restore
from elastic.store.folder import StoreError
from elastic.store.restore import Beginning, begin
from elastic.store.store import CheckpointStore
from tests.elastic.store.test_catalogue import running, saved
from tests.elastic.store.test_store import again, got
from tests.support.messages import pattern, wording

pytestmark = pytest.mark.slow


@pytest.fixture
def told() -> list[str]:
    return []


def begins(root: Path, told: list[str], id_: str, resume: str = "", requeued: bool = False, cluster: str = "") -> Path:
    return begin(root, Beginning(id_, cluster, requeued, resume), root.parent, told.append)


def content(path: Path) -> bytes:
    return asyncio.run(got(again(path)))


def test_slurm_says_who_begins() -> None:
    environ = {"SLURM_CLUSTER_NAME": "hpc", "SLURM_RESTART_COUNT": "2"}
    assert Beginning.of_job("7", "6", environ) == Beginning("7", "hpc", True, "6")
    assert Beginning.of_job("7", "", {"SLURM_RESTART_COUNT": "0"}) == Beginning("7")
    assert str(Beginning("7", "hpc").name) == "7@hpc"


def test_a_first_start_begins_with_nothing_and_a_requeued_job_with_its_own_checkpoint(
    root: Path, told: list[str]
) -> None:
    path = begins(root, told, "7")
    assert again(path).step == -1
    saved(root, "7", 40)
    assert again(begins(root, told, "7", requeued=True)).step == 40
    assert told == []


def test_regression_a_number_that_came_again_resumed_a_stranger_checkpoint_of_weeks_ago(
    root: Path, told: list[str]
) -> None:
    saved(root, "7", 40)
    path = begins(root, told, "7")
    assert again(path).step == -1
    [aside] = [found for found in root.iterdir() if found != path]
    assert aside.name.startswith("7.earlier-")
    assert again(aside).step == 40
    assert told == [wording("elastic.beginning.earlier_checkpoint", root=aside)]


def test_clusters_that_share_a_home_do_not_share_numbers(root: Path, told: list[str]) -> None:
    saved(root, "7@one", 40)
    assert again(begins(root, told, "7", cluster="two", requeued=True)).step == -1


def test_a_running_drivers_folder_is_not_taken_by_another_trainer(root: Path, told: list[str]) -> None:
    store = running(root, "7")
    with pytest.raises(UsageError, match=pattern("elastic.beginning.in_use")):
        begins(root, told, "7")
    store.close()


# -- resume ---


@pytest.mark.parametrize("linked", [True, False])
def test_a_new_job_goes_on_from_another_ones_checkpoint_which_stays_as_it_is(
    root: Path, told: list[str], monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "another file system")

    if not linked:
        monkeypatch.setattr(os, "link", refuse)
    saved(root, "7@hpc", 40)
    path = begins(root, told, "8", resume="7", cluster="hpc")
    assert told == [wording("elastic.beginning.goes_on_from", name="7@hpc", note=40)]
    assert content(path) == b"state"
    [name] = [file.name for file in path.glob("state-40-400-5-*.pt")]
    same = os.path.samefile(path / name, root / "7@hpc" / name)
    assert same == linked
    saved(root, "8@hpc", 50)
    assert again(root / "7@hpc").step == 40
    assert content(root / "7@hpc") == b"state"


def test_a_requeued_job_goes_on_from_its_own_checkpoint_and_not_from_that_of_the_one_it_resumed(
    root: Path, told: list[str]
) -> None:
    saved(root, "7", 40)
    saved(root, "8", 90)
    assert again(begins(root, told, "8", resume="7", requeued=True)).step == 90
    assert again(begins(root, told, "9", resume="7", requeued=True)).step == 40


def test_what_was_trained_to_its_end_can_be_gone_on_from_while_it_is_kept(root: Path, told: list[str]) -> None:
    saved(root, "7.ended-until-20990101T000000Z", 40)
    saved(root, "7.earlier-20250101T000000Z", 10)
    assert again(begins(root, told, "8", resume="7")).step == 40
    saved(root, "7", 5)
    assert again(begins(root, told, "9", resume="7")).step == 5


def test_a_checkpoint_of_this_cluster_goes_before_that_of_another(root: Path, told: list[str]) -> None:
    saved(root, "7@one", 10)
    saved(root, "7@two", 20)
    assert again(begins(root, told, "8", resume="7", cluster="two")).step == 20
    with pytest.raises(UsageError, match=pattern("elastic.beginning.ambiguous", names="resume=7@one or resume=7@two")):
        begins(root, told, "9", resume="7", cluster="three")
    assert again(begins(root, told, "9", resume="7@one", cluster="two")).step == 10
    assert again(begins(root, told, "10", resume="7@two", cluster="three")).step == 20


def test_a_resume_that_cannot_be_is_refused_with_one_line_and_nothing_is_changed(root: Path, told: list[str]) -> None:
    with pytest.raises(UsageError, match=pattern("elastic.beginning.no_checkpoint", resume=7)):
        begins(root, told, "8", resume="7")
    saved(root, "7", -1)
    with pytest.raises(UsageError, match=pattern("elastic.beginning.no_checkpoint", resume=7)):
        begins(root, told, "8", resume="7")
    store = running(root, "6")
    with pytest.raises(UsageError, match=pattern("elastic.beginning.still_running", resume=6, id=6)):
        begins(root, told, "8", resume="6")
    store.close()
    (root / "5").symlink_to("6")
    with pytest.raises(UsageError, match=r"resume=5: .* cannot be read"):
        begins(root, told, "8", resume="5")
    assert sorted(os.listdir(root)) == ["5", "6", "7"]
    assert told == []


@pytest.mark.skipif(os.getuid() != 0, reason="acting as two users needs root")
def test_another_users_checkpoint_is_refused(root: Path, told: list[str]) -> None:
    saved(root, "7", 40)
    os.chown(root / "7", 65534, 65534)
    with pytest.raises(UsageError, match=r"resume=7: .*belongs to nobody"):
        begins(root, told, "8", resume="7")


# -- what a release before has left ---


def former(cwd: Path, note: str = '{"step": 30, "samples": 300}') -> Path:
    folder = cwd / ".bft" / "7"
    folder.mkdir(parents=True)
    (folder / "state.pt").write_bytes(b"former")
    (folder / "state.json").write_text(note)
    return folder


def test_a_requeued_job_finds_the_checkpoint_that_the_release_before_has_saved(root: Path, told: list[str]) -> None:
    folder = former(root.parent)
    path = begins(root, told, "7", requeued=True)
    assert (again(path).step, content(path)) == (30, b"former")
    assert told == [wording("elastic.beginning.goes_on", path=folder, step=30)]


@pytest.mark.parametrize("broken", ["note", "open to others"])
def test_a_checkpoint_of_the_release_before_that_is_not_sure_is_told_and_not_used(
    root: Path, told: list[str], broken: str
) -> None:
    folder = former(root.parent, "{" if broken == "note" else '{"step": 30, "samples": 300}')
    if broken != "note":
        folder.parent.chmod(0o777)
    assert again(begins(root, told, "7", requeued=True)).step == -1
    [line] = told
    assert line.startswith(wording("elastic.beginning.not_used", path=folder, why=""))
    assert (folder / "state.pt").exists()


# -- the script ---


def test_the_script_is_kept_byte_for_byte_beside_the_checkpoint(root: Path, told: list[str]) -> None:
    path = begins(root, told, "7")
    source = b"# caf\xe9\n".decode(errors="surrogateescape")
    script, digest = restore.keep_script(path, "lock", source)
    assert script.read_bytes() == b"# caf\xe9\n"
    assert len(digest) == 64
    assert CheckpointStore(path).step == -1


def test_a_disk_without_space_for_the_script_is_one_line(
    root: Path, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    path = begins(root, told, "7")
    monkeypatch.setattr(os, "fsync", fail)
    full = wording("elastic.trouble.no_space")
    with pytest.raises(StoreError, match=pattern("elastic.beginning.script_not_written", error=full)):
        restore.keep_script(path, "train.py", "print()")
    assert os.listdir(path / "script") == []
