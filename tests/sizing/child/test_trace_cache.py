"""Traces that are kept: as long as nothing that they depended on has changed, and no longer."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sizing.base.parallel import Parallel
from sizing.child import trace_cache, tracing
from sizing.model.trace import StepTrace
from tests.support.torch_forks import Forks

pytestmark = [pytest.mark.torch]

STEP = """
import glob, json, os, torch
import sizes
try:
    import extra
except ImportError:
    extra = None
HERE = os.path.dirname(os.path.abspath(__file__))
def make_step(batch_size):
    with open("config.json") as file:
        width = json.load(file)["width"] * sizes.FACTOR * int(os.environ.get("STEP_TIMES", "1"))
    width += len(glob.glob("more/*")) + len(glob.glob(HERE + "/*.yaml")) + 3 * (extra is not None)
    width += 5 * os.path.exists("flag")
    os.environ["STEP_SEEN"] = os.environ.get("STEP_SEEN", "") + "seen"
    width += len(os.environ["STEP_SEEN"])
    try:
        width += len(open("optional").read())
    except FileNotFoundError:
        pass
    layer = torch.nn.Linear(width, 8, device="cuda")
    return lambda: layer(torch.zeros(batch_size, width, device="cuda")).sum().backward()
"""

Traced = Callable[[], StepTrace]


@pytest.fixture
def runs(forked_traces: Forks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A script in a folder of its own, and the batches of all traces that were made and not read."""
    made: list[int] = []

    def run(python: str, request: dict[str, Any], timeout_s: float, memory_bytes: int) -> Any:
        made.append(request["batch"])
        return forked_traces(python, request, timeout_s, memory_bytes)

    folder = tmp_path / "job"
    (folder / "more").mkdir(parents=True)
    (folder / "step.py").write_text(STEP)
    (folder / "sizes.py").write_text("FACTOR = 2\n")
    (folder / "config.json").write_text('{"width": 16}')
    monkeypatch.chdir(folder)
    monkeypatch.setattr(tracing, "_run", run)
    return made


def traced(batch: int = 4) -> StepTrace:
    return tracing.trace("step.py:make_step", batch, Parallel(), python=sys.executable)


def test_a_step_is_traced_once_and_each_batch_for_itself(runs: list[int]) -> None:
    first = traced()
    assert traced().operators == first.operators
    traced(8)
    assert runs == [4, 8]


def test_regression_a_file_made_in_a_folder_above_meanwhile_had_the_step_traced_anew(runs: list[int]) -> None:
    made = "\nimport time\nos.stat('..')\ntime.sleep(0.05)  # file times are coarse\nopen('../made', 'w').close()\n"
    Path("step.py").write_text(Path("step.py").read_text() + made)
    traced()
    traced()
    assert runs == [4]


def changed_script() -> None:
    Path("step.py").write_text(Path("step.py").read_text().replace("8,", "9,"))


def changed_import() -> None:
    Path("sizes.py").write_text("FACTOR = 3\n")


def changed_file() -> None:
    Path("config.json").write_text('{"width": 24}')


def changed_folder() -> None:
    Path("more/one").touch()


def changed_link() -> None:
    Path("other.json").write_text('{"width": 8}')
    Path("config.json").unlink()
    Path("config.json").symlink_to("other.json")


def new_file() -> None:
    Path("optional").write_text("long")


def looked_for() -> None:
    Path("flag").touch()


def new_module() -> None:
    Path("extra.py").touch()


def listed_beside() -> None:
    Path("one.yaml").touch()


@pytest.mark.parametrize(
    "change",
    [
        changed_script,
        changed_import,
        changed_file,
        changed_folder,
        changed_link,
        new_file,
        looked_for,
        new_module,
        listed_beside,
    ],
)
def test_what_a_step_depended_on_has_it_traced_anew_where_it_changes(
    runs: list[int], change: Callable[[], None]
) -> None:
    before = traced()
    change()
    after = traced()
    assert runs == [4, 4]
    assert after.parameters != before.parameters


def test_regression_an_edit_in_the_second_of_the_last_trace_went_unseen(runs: list[int]) -> None:
    edits = (("step.py", " 8,", " 9,"), ("sizes.py", "2", "3"))
    second = Path("step.py").stat()
    for name, _old, _new in edits:
        os.utime(name, (second.st_atime, second.st_mtime))
    before = traced()
    for name, old, new in edits:
        Path(name).write_text(Path(name).read_text().replace(old, new))
        os.utime(name, (second.st_atime, second.st_mtime))
        after = traced()
        assert after.parameters != before.parameters
        before = after
    assert runs == [4, 4, 4]
    assert not Path("__pycache__").exists()


def test_a_variable_that_the_step_asked_for_counts_and_no_other(
    runs: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = traced()
    monkeypatch.setenv("UNASKED", "1")
    assert traced().operators == before.operators
    assert runs == [4]
    monkeypatch.setenv("STEP_TIMES", "3")
    assert traced().parameters != before.parameters
    assert runs == [4, 4]
    monkeypatch.setenv("STEP_SEEN", "long before")
    traced()
    assert runs == [4, 4, 4]


def test_from_another_folder_and_with_other_modules_a_step_is_another_one(
    runs: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    traced()
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (tmp_path / "other" / "more").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "other")
    Path("config.json").write_text('{"width": 64}')
    tracing.trace(str(tmp_path / "job" / "step.py:make_step"), 4, Parallel(), python=sys.executable)
    assert runs == [4, 4, 4]


def test_a_step_that_looks_at_very_many_files_is_traced_each_time(runs: list[int], tmp_path: Path) -> None:
    text = Path("step.py").read_text()
    many = "\nfor number in range(3000): os.path.exists(f'/tmp/none/{number}')\n"
    Path("step.py").write_text(text + many)
    traced()
    traced()
    assert runs == [4, 4]


def test_a_kept_trace_that_is_damaged_or_cannot_be_kept_is_traced_anew(
    runs: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced()
    [file] = (tmp_path / "cache" / "bft" / "traces").iterdir()
    file.write_text(file.read_text()[:-20])
    traced()
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    traced()
    traced()
    assert runs == [4] * 4


def test_the_oldest_go_where_there_are_too_many(
    runs: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_cache, "MOST", 2)
    for batch in (1, 2, 3):
        traced(batch)
    assert len(list((tmp_path / "cache" / "bft" / "traces").iterdir())) == 2
    traced(3)
    traced(1)
    assert runs == [1, 2, 3, 1]
