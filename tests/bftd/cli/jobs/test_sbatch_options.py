"""Options of sbatch's that an elastic job cannot have, and the meaning of its number of nodes for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bftd.base.errors import UsageError
from bftd.cli.jobs import sbatch_options
from elastic.options.elastic_option import ElasticSpec
from tests.support.messages import says


@pytest.mark.parametrize(
    "words", [["--gpus=1"], ["-G1"], ["--gpus-per-task=1"], ["--tres-per-task=gres/gpu:4"], ["--tres-p", "cpu=2"]]
)
def test_an_elastic_job_names_its_gpus_by_no_option_of_sbatchs(words: list[str]) -> None:
    line = sbatch_options.parse([*words, "train.py"])
    assert line.script == "train.py"
    with pytest.raises(UsageError):
        sbatch_options.refuse_decided(line.options, "bft sbatch")


@pytest.mark.parametrize(
    ("nodes", "elastic"),
    [
        ("1-8", "1-8"),
        ("8", "8"),
        ("1k", "1024"),
        ("2-1K", "2-1024"),
        ("1M", "1048576"),
        ("2,8,4", "2-8,sizes=2:4:8"),
        ("1-15:4", "1-13,sizes=1:5:9:13"),
        ("1-3,8", "1-8,sizes=1:2:3:8"),
        ("1-2,3,4", "1-4"),
        ("4,4", "4-4"),
    ],
)
def test_the_number_of_nodes_of_sbatch_is_a_value_of_elastic(nodes: str, elastic: str) -> None:
    assert sbatch_options.elastic_of(nodes) == elastic
    assert ElasticSpec.parse(elastic).allowed is not None


@given(st.sets(st.integers(1, 60), min_size=1))
def test_a_list_of_sizes_allows_these_and_no_other(sizes: set[int]) -> None:
    allowed = ElasticSpec.parse(sbatch_options.elastic_of(",".join(map(str, sizes)) + f",{min(sizes)}")).allowed
    assert {nodes for nodes in range(1, 70) if allowed.allows(nodes)} == sizes


@pytest.mark.parametrize(
    "nodes", ["", "-", "many", "1-", "-8", "1-8-9", "1,,2", "8:2", "1-8:", "1-8:0", "8-1:2", "1g", "1-999999999:1"]
)
def test_what_sbatch_would_not_take_either_is_refused_in_one_line(nodes: str) -> None:
    with pytest.raises(UsageError) as refused:
        sbatch_options.elastic_of(nodes)
    assert says(str(refused.value), "cli.sbatch_options.no_nodes", nodes=nodes)


def test_more_sizes_than_a_trainer_may_name_are_refused() -> None:
    with pytest.raises(UsageError) as refused:
        sbatch_options.elastic_of("1-4000,5001-9000")
    assert says(str(refused.value), "cli.sbatch_options.too_many", nodes="1-4000,5001-9000", most=4096)


@pytest.mark.parametrize(
    "option",
    ["--requeue=expedite", "--requeue", "--stepmgr", "--spread-segments", "--oom-kill-step", "--mem-update=9@1"],
)
def test_options_of_newer_releases_leave_the_script_alone(option: str) -> None:
    line = sbatch_options.parse([option, "--segment", "2", "train.py", "--epochs", "3"])
    assert (line.script, line.arguments) == ("train.py", ("--epochs", "3"))
    assert line.value("segment") == "2"


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["-W"], {"wait": None}),
        (["-QW"], {"quiet": None, "wait": None}),
        (["-QHpgpu"], {"quiet": None, "hold": None, "partition": "gpu"}),
        (["-vp", "gpu"], {"verbose": None, "partition": "gpu"}),
        (["-t5"], {"time": "5"}),
        (["-k"], {"no-kill": None}),
        (["-Qkset"], {"quiet": None, "no-kill": "set"}),
    ],
)
def test_short_options_are_read_one_by_one(words: list[str], options: dict[str, str | None]) -> None:
    line = sbatch_options.parse([*words, "train.py"])
    assert line.script == "train.py"
    assert {option.name: option.value for option in line.options} == options
    again = sbatch_options.parse([*line.words(), "train.py"])
    assert again.options == line.options
