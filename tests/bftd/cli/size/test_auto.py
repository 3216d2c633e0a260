"""`bft size auto`: what a value of --auto-gpus means, and the plans as bftd_gpus.lua reads them."""

from __future__ import annotations

from typing import Any

import pytest

from bftd.base.errors import BftError, UsageError
from bftd.cli.size.auto import answer, fit_words
from tests.support.messages import excerpt, wording

pytestmark = pytest.mark.slow

GIB = 2**30
LINES = ("--partition=a100", "--nodes=2", "--ntasks-per-node=4", "--gres=gpu:a100:4", "--cpus-per-task=8", "--mem=64G")


def plan(**changes: Any) -> dict[str, Any]:
    """A plan as `bft size fit --json` has it."""
    made = {
        "partition": "a100",
        "gpu_type": "a100-sxm-80gb",
        "gpus": 8,
        "nodes": 2,
        "dp": 4,
        "tp": 2,
        "fsdp": 1,
        "peak_bytes": 61 * GIB,
        "gpu_bytes": 79 * GIB,
        "origin": "traced",
        "fits": True,
        "sbatch": [f"#SBATCH {line}" for line in LINES],
    }
    return {**made, **changes}


SAID = "partition=a100 nodes=2 tasks=4 gres=gpu:a100:4 cpus=8 mem=65536 why=dp 4 x tp 2, 61.0 of 79.0 GiB a GPU, traced"


def test_a_plan_is_said_as_fields_in_the_site_own_words() -> None:
    assert answer([plan()]) == SAID


def test_the_order_stays_what_does_not_fit_is_left_out_and_one_way_to_have_the_same_gpus_is_enough() -> None:
    plans = [plan(), plan(origin="formula"), plan(partition="v100", fits=False), plan(gpus=4, nodes=1)]
    first, second = answer(plans).split(";")
    assert first == SAID
    assert second.startswith("partition=a100 nodes=2 ")  # of its lines


def test_features_are_said_and_a_plan_without_gpus_in_its_lines_is_left_out() -> None:
    lines = [f"#SBATCH {line}  # why" for line in (*LINES, "--constraint=a100_80")]
    assert " features=a100_80 why=" in answer([plan(sbatch=lines)])
    assert answer([plan(sbatch=lines[:3])]) == ""


def test_the_answer_is_bounded_and_has_no_letter_that_separates() -> None:
    many = [plan(partition=f"p{number}", gpus=2 * number, origin="a;b|c\x1b") for number in range(1, 1000)]
    said = answer(many)
    assert len(said) <= 6000
    assert 10 < len(said.split(";")) <= 40
    assert said.isprintable()


def test_regression_many_plans_of_one_partition_left_no_place_for_another_that_the_user_wrote() -> None:
    def asked(partition: str, nodes: int, per_node: int) -> dict[str, Any]:
        lines = [
            f"#SBATCH --{option}" for option in (f"partition={partition}", f"nodes={nodes}", f"gres=gpu:{per_node}")
        ]
        return plan(partition=partition, nodes=nodes, gpus=nodes * per_node, sbatch=lines)

    plans = [asked("cheap", nodes, per_node) for nodes in range(1, 11) for per_node in range(1, 9)]
    said = answer([*plans, asked("rare", 1, 1), asked("rare", 3, 1)]).split(";")
    shown = [tuple(text.split(" ")[:2]) for text in said]
    assert len(said) == 40
    assert {("partition=cheap", f"nodes={nodes}") for nodes in range(1, 11)} <= set(shown)
    assert shown[-2:] == [("partition=rare", "nodes=1"), ("partition=rare", "nodes=3")]
    assert said[0] == answer(plans[:1])  # the best is the first


def test_memory_that_is_not_understood_is_an_error_and_not_a_guess() -> None:
    with pytest.raises(BftError, match="not understood"):
        answer([plan(sbatch=[*plan()["sbatch"], "#SBATCH --mem=much"])])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("a/step.py:make,global-batch=8", ["a/step.py:make", "--global-batch=8"]),
        (
            "s.py:f,global-batch=8,partition=a100,max-gpus=4,precision=fp32",
            ["s.py:f", "--global-batch=8", "--partition=a100", "--max-gpus=4", "--precision=fp32"],
        ),
        (
            "gpt:h=1024,l=24,global-batch=64,precision=bf16",
            ["--config", "gpt:h=1024,l=24,precision=bf16", "--global-batch=64"],
        ),
        (
            "m/config.json:s=2048,global-batch=8,by=time",
            ["--config", "m/config.json:s=2048", "--global-batch=8", "--by=time"],
        ),
    ],
)
def test_a_value_stands_for_a_command_line_of_bft_size_fit(value: str, words: list[str]) -> None:
    assert fit_words(value) == [*words, "--no-start", "--json"]


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("", excerpt("cli.size_auto.no_step_named")),
        ("step.py,global-batch=8", excerpt("cli.size_auto.no_step_named")),
        ("step.py:2,global-batch=8", excerpt("cli.size_auto.no_step_named")),
        ("step.py:f", "how many samples"),
        ("gpt:h=1", "how many samples"),
        (
            "step.py:f,global-batch=8,max-gpu=4",
            wording("cli.size_auto.unknown_option", word="max-gpu=4", name="global-batch="),
        ),
    ],
)
def test_a_value_that_means_nothing_is_refused_with_an_example(value: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        fit_words(value)
    assert hint in str(caught.value)
