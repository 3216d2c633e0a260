"""What a profile said is found again by the script, from whatever host and copy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from bftd.cli.main import bft
from sizing.cpu import needs
from sizing.cpu.needs import StoredNeed
from tests.support.messages import says

NEED = StoredNeed(3, 5 * 2**30, 1, "gpu1", 1000.0)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("import elastic\n")
    return path


def test_a_need_is_found_by_what_the_script_holds_and_not_by_where_it_is(tmp_path: Path, script: Path) -> None:
    cache = tmp_path / "needs.sqlite"
    assert needs.find(script, (), cache) is None
    words = ("torchrun", "--nproc-per-node", "2", "train.py", "--lr", "3")
    assert needs.keep(words, tmp_path, NEED, cache) == ""
    copy = tmp_path / "elsewhere.py"
    copy.write_bytes(script.read_bytes())
    assert needs.find(copy, ("--lr", "3"), cache) == NEED
    copy.write_text("import elastic  # changed\n")
    assert needs.find(copy, ("--lr", "3"), cache) is None


def test_the_same_arguments_come_before_the_newest(tmp_path: Path, script: Path) -> None:
    cache = tmp_path / "needs.sqlite"
    for arguments, cpus, made_s in (("a", 1, 10.0), ("b", 2, 20.0), ("c", 3, 15.0)):
        needs.keep(("python", "train.py", arguments), tmp_path, StoredNeed(cpus, 2**30, 0, "h", made_s), cache)
    needs.keep(("python", "train.py", "a"), tmp_path, StoredNeed(4, 2**30, 0, "other", 5.0), cache)

    def found(*arguments: str) -> tuple[int, bool]:
        one = needs.find(script, arguments, cache)
        assert one is not None
        return one.cpus, one.same_arguments

    assert found("a") == (1, True)
    assert found("c") == (3, True)
    assert found("d") == (2, False)
    needs.keep(("python", "train.py", "a"), tmp_path, StoredNeed(7, 2**30, 0, "h", 30.0), cache)
    assert found("a") == (7, True), "a new profile takes the place of the last one on that host"


def test_an_interpreter_is_no_script_and_a_command_without_any_keeps_nothing(tmp_path: Path) -> None:
    cache = tmp_path / "needs.sqlite"
    (tmp_path / "python").write_bytes(b"\x7fELF\0\0")
    assert needs.keep(("./python", "-c", "pass"), tmp_path, NEED, cache) == ""
    assert not cache.exists()


def test_a_cache_that_cannot_be_used_costs_one_line(tmp_path: Path, script: Path) -> None:
    folder = tmp_path / "file"
    folder.write_text("")
    cache = folder / "needs.sqlite"
    said = needs.keep(("python", "train.py"), tmp_path, NEED, cache)
    assert says(said, "sizing.cpu_needs.not_kept")
    assert "\n" not in said
    bad = tmp_path / "bad.sqlite"
    bad.write_text("this is no database, however long it is")
    assert needs.find(script, (), bad) is None, "it is set aside"


def test_the_command_says_what_is_known_or_what_to_do(
    tmp_path: Path, script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    answer = CliRunner().invoke(bft, ["size", "need", str(script), "--lr", "3"])
    assert answer.exit_code
    assert says(str(answer.exception), "cli.size_need.not_profiled")
    assert needs.keep(("python", "train.py", "--lr", "3"), tmp_path, NEED) == ""
    answer = CliRunner().invoke(bft, ["size", "need", "--json", str(script), "--lr", "3"])
    told = json.loads(answer.output)
    assert told.pop("age_s") > 1e9
    need = {"cpus": 3, "memory_bytes": 5 * 2**30, "gpus": 1, "host": "gpu1", "same_arguments": True}
    assert told == {"format": 1} | need
    answer = CliRunner().invoke(bft, ["size", "need", str(script)])
    assert says(answer.output, "cli.size_need.need", cpus="3 CPUs", memory="5.0 GiB", each="for each GPU")
    assert "with other arguments" in answer.output
