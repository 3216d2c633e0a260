"""The file of trainers: what is read from it, and how its faults are told."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from bftd.base.errors import UsageError
from bftd.simulation.drivers import trainers
from tests.support.messages import fragment, pattern

ENTRY: dict[str, Any] = {
    "name": "J0-tiny",
    "nodes_min": 2,
    "nodes_max": 5,
    "work_samples": 100,
    "up_cost_s": 3,
    "down_cost_s": 1,
    "curve_nodes": [0, 2, 4],
    "curve_samples_per_s": [0, 10, 18],
}


def _file(folder: Path, *entries: object) -> Path:
    path = folder / "trainers.json"
    path.write_text(json.dumps(list(entries)))
    return path


def test_rates_are_linear_between_the_points_constant_beyond_and_nothing_below_nodes_min(tmp_path: Path) -> None:
    (trainer,) = trainers.read(_file(tmp_path, ENTRY))
    assert trainer.rates == (0.0, 0.0, 10.0, 14.0, 18.0, 18.0)
    assert trainer.objective == trainer.curve
    assert trainer.submit_s == 0.0


def test_what_is_written_reads_back_the_same_from_gzip_too(tmp_path: Path) -> None:
    read = trainers.read(_file(tmp_path, ENTRY))
    packed = tmp_path / "t.json.gz"
    packed.write_bytes(gzip.compress(json.dumps([trainer.to_json() for trainer in read]).encode()))
    assert trainers.read(packed) == read
    assert trainers.digest(trainers.read(packed)) == trainers.digest(read)


def test_trainers_come_in_order_of_submission(tmp_path: Path) -> None:
    late, early = ENTRY | {"name": "late", "submit_s": 5}, ENTRY | {"name": "early", "submit_s": 1}
    assert [trainer.name for trainer in trainers.read(_file(tmp_path, late, early))] == ["early", "late"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("J00012-ResNet18", "ResNet18"), ("trial-7", "trial"), ("J00000", "J"), ("J1-vgg16#3", "vgg16"), ("bert", "bert")],
)
def test_the_kind_of_a_trainer_is_its_name_without_the_number(name: str, kind: str, tmp_path: Path) -> None:
    assert trainers.read(_file(tmp_path, ENTRY | {"name": name}))[0].kind == kind


BAD = [
    ({"nodes_min": 6}, "nodes_min 6 is above nodes_max 5"),
    ({"nodes_min": 0}, "nodes_min must be 1 or more, not 0"),
    ({"nodes_max": 2.5}, "nodes_max must be a whole number, not 2.5"),
    ({"work_samples": 0}, "work_samples must be above 0"),
    ({"work_samples": float("nan")}, "work_samples must be a finite number, not nan"),
    ({"work_samples": 10**400}, "work_samples must be a finite number, not 1000"),
    ({"up_cost_s": -1}, "up_cost_s must be 0 or more, not -1"),
    ({"up_cost_s": "3"}, "up_cost_s must be a finite number, not '3'"),
    ({"curve_nodes": [0, 4, 2]}, "curve_nodes must increase"),
    ({"curve_nodes": [0, 2]}, "curve_nodes has 2 entries but curve_samples_per_s has 3"),
    ({"curve_nodes": [0, 2, True]}, "curve_nodes must be a whole number, not True"),
    ({"curve_samples_per_s": [1, 2, 3]}, "curve_samples_per_s must be 0 on 0 nodes"),
    ({"curve_objective": [0, 1]}, "curve_nodes has 3 entries but curve_objective has 2"),
    ({"speed": 3}, "unknown field 'speed'"),
]


@pytest.mark.parametrize(("fields", "fault"), BAD, ids=[fault for _, fault in BAD])
def test_a_fault_is_told_in_one_line_with_the_file_and_the_entry(
    fields: dict[str, Any], fault: str, tmp_path: Path
) -> None:
    path = _file(tmp_path, ENTRY | {"name": "good"}, ENTRY | fields)
    with pytest.raises(UsageError) as caught:
        trainers.read(path)
    assert fault in str(caught.value)
    assert str(caught.value).startswith(f"{path}, entry 2 (J0-tiny): ")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_name_that_is_there_twice_names_both_entries(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=pattern("simulated.trainers.twice", number=3, name="J0-tiny", first_at=1)):
        trainers.read(_file(tmp_path, ENTRY, ENTRY | {"name": "x"}, ENTRY))


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "not JSON"),
        (b"{}", pattern("simulated.trainers.not_an_array")),
        (b"[]", pattern("simulated.trainers.not_an_array")),
        (b"[1]", pattern("protocol.fields.not_an_object", where="entry 1")),
        (b'[{"nodes_min": 1}]', pattern("simulated.trainers.name_missing", where="entry 1")),
        (b'[{"name": "a"}]', pattern("protocol.fields.missing", where="entry 1 (a)", name="nodes_min")),
        (b"\xff", "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_file_that_is_no_list_of_trainers_is_told_in_one_line(content: bytes, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "trainers.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=fault) as caught:
        trainers.read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("cut", [0, 5, -4])
def test_a_truncated_gzip_file_is_told_in_one_line(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "trainers.json.gz"
    path.write_bytes(gzip.compress(json.dumps([ENTRY]).encode())[: cut or 10])
    with pytest.raises(UsageError, match=pattern("simulated.trainers.not_whole_gzip")):
        trainers.read(path)


def test_a_missing_file_is_told_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=pattern("cli.unreadable", path=fragment("no.json"), strerror="No such file")):
        trainers.read(tmp_path / "no.json")
