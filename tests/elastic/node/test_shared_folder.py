"""Whether nodes share a folder, as an agent finds it out."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from elastic.node import shared_folder

pytestmark = pytest.mark.slow


def test_nodes_that_share_a_folder_see_what_each_other_wrote(tmp_path: Path) -> None:
    path = str(tmp_path / "run7")
    for name in ("n1", "n2"):
        shared_folder.write(path, "abc", name)
    assert shared_folder.read(path, "abc", ["n1", "n2", "n3"]) == ["n3"]
    assert shared_folder.read(path, "another", ["n1"]) == ["n1"]


def test_a_node_answers_what_it_wrote_whom_it_misses_and_how_much_is_free(tmp_path: Path) -> None:
    shared_folder.write(str(tmp_path), "abc", "n1")
    answer = shared_folder.probed({"op": "probe", "path": str(tmp_path), "token": "abc", "names": ["n1", "n3"]}, "n2")
    assert answer.pop("free_bytes") > 0
    assert answer == {"op": "probed", "token": "abc", "wrote": True, "missing": ["n3"], "error": ""}
    assert shared_folder.read(str(tmp_path), "abc", ["n2"]) == []


def test_a_node_that_cannot_write_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer = shared_folder.probed(
        {"op": "probe", "path": str(tmp_path / "file"), "token": "abc", "names": ["n1"]}, "n2"
    )
    assert (answer["wrote"], answer["missing"], answer["error"]) == (False, ["n1"], os.strerror(20))
    assert answer["errno"] == 20


@pytest.mark.parametrize(
    "fields",
    [{"token": "../abc"}, {"path": "relative"}, {"names": ["../secret"]}, {"path": None}],
)
def test_a_probe_reaches_no_file_outside_its_folder(tmp_path: Path, fields: dict[str, object]) -> None:
    answer = shared_folder.probed({"op": "probe", "path": str(tmp_path), "token": "abc", "names": [], **fields}, "n1")
    assert "cannot be understood" in answer["error"]


def test_the_marks_of_nodes_that_probe_at_once_are_all_there(tmp_path: Path) -> None:
    names = [f"n{index}" for index in range(20)]
    threads = [
        threading.Thread(target=shared_folder.write, args=(str(tmp_path / "run"), "abc", name)) for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert shared_folder.read(str(tmp_path / "run"), "abc", names) == []
