"""What accounting says of a job that has ended, read from rows as sacct prints them."""

from __future__ import annotations

import pytest

from slurm_plugin.clients.client import CommandResult
from slurm_plugin.clients.finished import FinishedJob, finished
from slurm_plugin.errors import SlurmError
from tests.support.messages import says

GIB = 2**30
TRES = "billing=16,cpu=16,gres/gpu:a100=4,gres/gpu=4,mem=64G,node=2"


class Sacct:
    """Answers with these rows: the whole job's, and those of its steps."""

    def __init__(
        self, *steps: str, given: str = TRES, asked: str | None = None, state: str = "COMPLETED", nodes: str = "n[1-2]"
    ) -> None:
        job = f"42|42|home|{state}|1000|4600|{nodes}||{given if asked is None else asked}|{given}||"
        self.answer = CommandResult(0, "\n".join((job, *(steps or (step("0", 4, "1G"),)))) + "\n", "")

    def run(self, command: str, *arguments: str, timeout_s: float) -> CommandResult:
        assert (command, arguments[0]) == ("sacct", "--jobs=42")
        assert timeout_s > 5
        return self.answer


def step(
    name: str,
    tasks: int,
    rss: str,
    total: str = "",
    nodes: str = "n[1-2]",
    state: str = "COMPLETED",
    at: str = "1000|4600",
) -> str:
    return f"42.{name}|42.{name}|home|{state}|{at}|{nodes}|{tasks}||cpu=16|{rss}|{total}"


def asked(sacct: Sacct) -> FinishedJob:
    return finished(sacct, "42")  # type: ignore[arg-type]


def test_gpus_nodes_and_times_of_a_job() -> None:
    found = asked(Sacct(step("batch", 1, "1G", nodes="n1")))
    assert (found.id, found.cluster, found.nodes) == ("42", "home", ("n1", "n2"))
    assert (found.started_s, found.ended_s) == (1000, 4600)
    assert (found.gpus, found.gres_type) == (4, "a100")
    assert asked(Sacct(given="cpu=4,gres/gpu=2,gres/gpumem=1")).gpus == 2
    typed = asked(Sacct(given="cpu=4,gres/gpu:h100=8"))
    assert (typed.gpus, typed.gres_type) == (8, "h100")


def test_steps_that_ran_at_the_same_time_share_a_node_and_others_do_not() -> None:
    script, first = step("batch", 1, "1073741824", nodes="n1"), step("0", 4, "2G", at="1000|2000")
    assert asked(Sacct(script, step("extern", 2, "0"), first)).host_bytes == GIB + 2 * 2 * GIB, "two tasks a node"
    later, beside = step("1", 2, "3G", at="2000|4600"), step("1", 2, "3G", at="1500|4600")
    assert asked(Sacct(script, first, later)).host_bytes == GIB + 4 * GIB
    assert asked(Sacct(script, first, beside)).host_bytes == GIB + 4 * GIB + 3 * GIB
    one_node = step("0", 4, "2G", nodes="n1")
    assert asked(Sacct(one_node)).host_bytes == 8 * GIB
    one_large = step("0", 4, "2G", "cpu=1,mem=3G,vmem=9G", nodes="n1")
    assert asked(Sacct(one_large)).host_bytes == 3 * GIB, "all of them together had no more"
    uneven = step("0", 3, "1G")
    assert asked(Sacct(uneven)).host_bytes == 3 * GIB, "nobody knows on which node there were two"
    assert asked(Sacct(script, step("0", 4, ""))).host_bytes is None, "the step was not seen"
    assert asked(Sacct(script, step("extern", 2, ""))).host_bytes == GIB


def test_what_is_told_of_several_gpus_together_says_nothing_of_one() -> None:
    used = step("0", 1, "1G", "gres/gpumem=70000M,gres/gpuutil=93")
    assert asked(Sacct(used)).gpu_bytes is None
    assert asked(Sacct(used, given="gres/gpu=1")).gpu_bytes == 70000 * 2**20
    assert asked(Sacct(step("0", 1, "1G", "gres/gpumem=0"), given="gres/gpu=1")).gpu_bytes is None


def test_a_job_that_its_time_limit_ended_has_steps_that_were_cancelled() -> None:
    assert asked(Sacct(step("0", 4, "1G", state="CANCELLED by 0"), state="TIMEOUT")).gpus == 4
    with pytest.raises(SlurmError):
        asked(Sacct(step("0", 4, "1G", state="CANCELLED by 0")))


@pytest.mark.parametrize(
    ("sacct", "key"),
    [
        (Sacct(state="FAILED"), "slurm_plugin.finished.ended_badly"),
        (Sacct(state="CANCELLED by 1000"), "slurm_plugin.finished.ended_badly"),
        (Sacct(state="RUNNING"), "slurm_plugin.finished.not_over"),
        (Sacct(step("0", 4, "1G", state="RUNNING")), "slurm_plugin.finished.not_all_yet"),
        (Sacct(asked=""), "slurm_plugin.finished.not_all_yet"),
        (Sacct(step("0", 4, "1G").replace("|42.0|", "|42+1.0|")), "slurm_plugin.finished.components"),
        (Sacct(step("0", 4, "1G", state="OUT_OF_MEMORY")), "slurm_plugin.finished.ended_badly"),
        (Sacct(step("0", 4, "1G", state="FAILED"), state="TIMEOUT"), "slurm_plugin.finished.ended_badly"),
        (Sacct(given="cpu=4,mem=1G"), "slurm_plugin.finished.no_gpus"),
        (Sacct(nodes=""), "slurm_plugin.finished.no_gpus"),
        (Sacct(given="gres/gpu:a100=2,gres/gpu:v100=2"), "slurm_plugin.finished.several_types"),
        (Sacct(given="gres/gpu:a100=2,gres/gpu=4"), "slurm_plugin.finished.several_types"),
        (Sacct(asked="gres/gpu=2"), "slurm_plugin.finished.had_more"),
        (Sacct(asked="cpu=4,mem=1G"), "slurm_plugin.finished.had_more"),
        (Sacct(step("0", 4, "2Q")), "slurm_plugin.finished.unreadable"),
    ],
)
def test_a_job_that_nothing_can_be_learnt_from_is_refused(sacct: Sacct, key: str) -> None:
    with pytest.raises(SlurmError) as refused:
        asked(sacct)
    assert says(str(refused.value), key)


def test_what_is_no_answer_is_an_error() -> None:
    resized = Sacct()
    first = resized.answer.out.splitlines()[0]
    for answer, key in (
        (CommandResult(1, "", "sacct: error: no slurmdbd"), "slurm_plugin.finished.sacct_failed"),
        (CommandResult(0, "42|home\n", ""), "slurm_plugin.finished.fields_lacking"),
        (CommandResult(0, "", ""), "slurm_plugin.finished.jobs"),
        (CommandResult(0, resized.answer.out * 2, ""), "slurm_plugin.finished.jobs"),
        (CommandResult(0, first, ""), "slurm_plugin.finished.not_all_yet"),
    ):
        sacct = Sacct()
        sacct.answer = answer
        with pytest.raises(SlurmError) as refused:
            asked(sacct)
        assert says(str(refused.value), key)


def test_an_array_that_begins_with_the_job_is_not_the_job() -> None:
    sacct = Sacct()
    other = sacct.answer.out.replace("42|42", "43|42_7")
    sacct.answer = CommandResult(0, sacct.answer.out + other, "")
    assert asked(sacct).id == "42"
