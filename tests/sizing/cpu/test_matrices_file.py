"""Files of matrices: the public form and our own, and one line for whatever is wrong with a file."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing.base.errors import UsageError
from sizing.cpu import matrices_file
from sizing.cpu.sensitivity.matrix import CpuMemory
from tests.support.messages import excerpt, fragment, pattern, wording


def cpus_searched(shown: int) -> str:
    wanted = wording("sizing.cpu_matrices_file.cpus_wanted")
    return excerpt("sizing.fields.wrong", key="cpus_searched", shown=shown, wanted=wanted)


GB = 10**9
OURS: dict[str, Any] = {
    "vgg": {
        "class": "image",
        "gpus": 2,
        "iteration_s": 0.5,
        "cpus_per_gpu": [1, 2, 4],
        "memory_gb_per_gpu": [8, 16.5],
        "throughput": [[0, 1], [1, 2], [1, 4]],
    }
}
PUBLIC = {"gnmt_1": {"class": "language", "gpus": 1, "throughput": [[1] * 5] * 9, "memory_gb": None, "cpus": 1.0}}


def parsed(data: object) -> matrices_file.Matrices:
    return matrices_file.parse(json.dumps(data), "m.json")


def changed(**fields: object) -> dict[str, Any]:
    """The file with other fields of its job; those that are None are left out."""
    found = copy.deepcopy(OURS)
    found["vgg"].update(fields)
    found["vgg"] = {key: value for key, value in found["vgg"].items() if value is not None}
    return found


def test_a_file_with_axes_is_read_as_it_is_and_written_the_same() -> None:
    made = parsed(OURS)
    vgg = made["vgg"]
    assert (vgg.name, vgg.kind, vgg.iteration_s, vgg.matrix.gpus) == ("vgg", "image", 0.5, 2)
    assert vgg.matrix.cpus == (1.0, 2.0, 4.0)
    assert vgg.matrix.memory_bytes == (8 * GB, 16.5 * GB)
    assert vgg.matrix.rate(CpuMemory(4, 17 * GB)) == 4.0
    assert parsed(matrices_file.to_json(made.values())) == made


def test_the_public_form_has_the_axes_of_its_servers() -> None:
    matrix = parsed(PUBLIC)["gnmt_1"].matrix
    assert matrix.cpus == (1, 2, 3, 4, 5, 6, 9, 12, 24)
    assert matrix.memory_bytes == (20.8 * GB, 62.5 * GB, 125 * GB, 187.5 * GB, 250 * GB)
    assert matrix.demand() == CpuMemory(1.0, 20.8 * GB)


def test_of_four_columns_the_first_of_the_axis_is_not_there() -> None:
    four = {"res_2": {"gpus": 2, "throughput": [[1, 1, 1, 1]] * 9}}
    assert parsed(four)["res_2"].matrix.memory_bytes[0] == 62.5 * GB


def test_rows_and_columns_of_servers_that_there_are_not_are_no_part_of_the_axes() -> None:
    made = parsed(changed(throughput=[[0, 0], [2, 0], [0, 0]]))["vgg"].matrix
    assert (made.cpus, made.memory_bytes, made.rates) == ((1.0, 2.0), (8 * GB,), ((0.0,), (2.0,)))


def test_what_a_search_found_enough_is_kept() -> None:
    made = parsed(changed(cpus_searched=2))
    assert made["vgg"].matrix.demand() == CpuMemory(2.0, 16.5 * GB)
    assert parsed(matrices_file.to_json(made.values())) == made


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], excerpt("sizing.fields.not_an_object", where="m.json")),
        ({}, excerpt("sizing.cpu_matrices_file.empty", name="m.json")),
        ({"a": 1}, excerpt("sizing.fields.not_an_object", where="m.json, a")),
        ({"a\nb": {}}, excerpt("sizing.cpu_matrices_file.bad_name")),
        (changed(gpus=0), "gpus is 0: give " + wording("sizing.fields.whole_wanted", least=1)),
        (changed(gpus=None), "gpus is missing"),
        (changed(colour="red"), "no field colour"),
        (changed(throughput=None), excerpt("sizing.cpu_matrices_file.no_table")),
        (changed(throughput=[]), excerpt("sizing.cpu_matrices_file.no_table")),
        (changed(throughput=[1, 2, 3]), excerpt("sizing.cpu_matrices_file.no_table")),
        (changed(throughput=[[], [], []]), excerpt("sizing.cpu_matrices_file.no_table")),
        (
            changed(throughput=[[1, 1], [1, 1, 1], [1, 1]]),
            excerpt("sizing.cpu_matrices_file.row_length", at=2, row=3, rows=fragment("2")),
        ),
        (changed(throughput=[[1, 1], [1, -1], [1, 1]]), excerpt("sizing.cpu_matrices_file.row_values", at=2, shown=-1)),
        (
            changed(throughput=[[1, 1], [1, float("nan")], [1, 1]]),
            excerpt("sizing.cpu_matrices_file.row_values", at=2, shown=fragment("NaN")),
        ),
        (
            changed(throughput=[[1, 1], [1, float("inf")], [1, 1]]),
            excerpt("sizing.cpu_matrices_file.row_values", at=2, shown=fragment("Infinity")),
        ),
        (
            changed(throughput=[[1, 1], [1, True], [1, 1]]),
            excerpt("sizing.cpu_matrices_file.row_values", at=2, shown=fragment("true")),
        ),
        (
            changed(throughput=[[1, 1], [1, "1"], [1, 1]]),
            excerpt("sizing.cpu_matrices_file.row_values", at=2, shown=fragment('"1"')),
        ),
        (changed(throughput=[[0, 0]] * 3), "throughput is 0 everywhere"),
        (
            changed(cpus_per_gpu=[1, 2]),
            excerpt("sizing.cpu_matrices_file.axis_length", key=fragment("cpus_per_gpu"), count=3),
        ),
        (changed(cpus_per_gpu=[1, 4, 2]), "cpus_per_gpu does not ascend"),
        (
            changed(cpus_per_gpu=[0, 1, 2]),
            excerpt("sizing.cpu_matrices_file.axis_unordered", key=fragment("cpus_per_gpu")),
        ),
        (
            changed(cpus_per_gpu=None),
            excerpt("sizing.cpu_matrices_file.axis_missing", count=3, what="rows", key=fragment("cpus_per_gpu")),
        ),
        (
            changed(memory_gb_per_gpu=None),
            excerpt(
                "sizing.cpu_matrices_file.axis_missing", count=2, what="columns", key=fragment("memory_gb_per_gpu")
            ),
        ),
        (
            changed(memory_gb_per_gpu=[8, float("nan")]),
            excerpt("sizing.cpu_matrices_file.axis_length", key=fragment("memory_gb_per_gpu"), count=2),
        ),
        (changed(cpus_searched=3), cpus_searched(3)),
        (changed(cpus_searched=1, throughput=[[0, 0], [2, 2], [2, 2]]), cpus_searched(1)),
        (
            changed(throughput=[[1e-320, 1], [1, 1], [1, 1]]),
            excerpt("sizing.cpu_matrices_file.negative_or_nan", least="9.99989e-321", most=1),
        ),
        (changed(iteration_s=-1), "iteration_s is -1"),
    ],
)
def test_what_is_wrong_is_one_line_with_its_place(data: object, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        parsed(data)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "m.json" in str(raised.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from([*OURS["vgg"], "cpus_searched", "cpus", "other"]), JSON)
def test_whatever_stands_in_a_field_is_read_or_refused_in_one_line(field: str, value: object) -> None:
    try:
        [made] = parsed(changed(**{field: value})).values()
    except UsageError as error:
        said = str(error)
    else:
        said = ""
        assert made.matrix.demand().cpus in made.matrix.cpus
    assert "\n" not in said


def test_a_job_that_is_there_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="'a' is there twice"):
        matrices_file.parse('{"a": {}, "a": {}}', "m.json")


def test_files_that_are_not_there_no_text_or_too_large_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path, said in [(tmp_path / "no.json", "No such file"), (tmp_path, "Is a directory")]:
        with pytest.raises(UsageError, match=said):
            matrices_file.load(path)
    (tmp_path / "m.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not UTF-8 text"):
        matrices_file.load(tmp_path / "m.json")
    (tmp_path / "m.json").write_text(json.dumps(OURS))
    assert list(matrices_file.load(tmp_path / "m.json")) == ["vgg"]
    monkeypatch.setattr(matrices_file, "_MOST_BYTES", 10)
    with pytest.raises(UsageError, match=pattern("sizing.cpu_matrices_file.too_large")):
        matrices_file.load(tmp_path / "m.json")


def test_a_model_that_is_not_there_is_told_the_nearest() -> None:
    made = parsed(PUBLIC | OURS)
    assert matrices_file.one(made, "vgg") is made["vgg"]
    with pytest.raises(
        UsageError,
        match=pattern(
            "sizing.cpu_matrices_file.no_model",
            name="gnmt1",
            hint=fragment(excerpt("sizing.fields.hint", near=fragment("gnmt_1"))),
        ),
    ):
        matrices_file.one(made, "gnmt1")
    with pytest.raises(UsageError, match="there are gnmt_1, vgg"):
        matrices_file.one(made, "zzz")
