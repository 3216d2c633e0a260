"""From a sensitivity matrix to #SBATCH lines: whole CPUs, memory in Slurm's units, and what that is to others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.cpu.sensitivity.matrix import Matrix
from sizing.sbatch.cpu import GUARD, GUARD_LEAST_BYTES, CpuNeed, NodeResources, slurm_size
from tests.support.messages import says, wording

GIB = 2**30
NODE = NodeResources(cpus=32, memory_bytes=512 * GIB, gpus=8)  # a share of 4 CPUs and 64 GiB


def need(
    rates: dict[float, float],
    *,
    gpus: int = 1,
    process_bytes: float | None = 2 * GIB,
    searched: float | None = None,
) -> CpuNeed:
    """A job without a memory axis, of whose CPUs the rates are known."""
    table = Matrix(max(1, gpus), tuple(rates), (1.0,), tuple((rate,) for rate in rates.values()), searched=searched)
    return CpuNeed(table, gpus, process_bytes, modelled=False)


def cached(gpus: int = 2) -> CpuNeed:
    """A job of which a cache of 30 GiB for each GPU pays, beside 10 GiB of its processes."""
    sizes = (10.0 * GIB, 40.0 * GIB, 100.0 * GIB)
    table = Matrix(gpus, (2.0, 8.0), sizes, ((50.0, 100.0, 100.0), (50.0, 200.0, 200.0)))
    return CpuNeed(table, gpus, 10.0 * GIB * gpus, modelled=True)


def written(job: CpuNeed) -> dict[str, str]:
    return {line.option: line.value for line in job.lines()}


def test_a_job_with_gpus_asks_for_cpus_and_memory_of_each_gpu() -> None:
    assert written(cached()) == {"cpus-per-gpu": "8", "mem-per-gpu": "41G"}


def test_a_job_without_gpus_asks_for_cpus_and_memory_of_its_task() -> None:
    assert written(need({1: 10, 2: 20, 4: 20.1}, gpus=0)) == {"cpus-per-task": "2", "mem": "2560M"}


def test_parts_of_a_cpu_are_rounded_up_to_a_whole_one_for_each_gpu() -> None:
    assert written(need({0.5: 10, 1.5: 20, 2.5: 20}, gpus=2))["cpus-per-gpu"] == "2"


def test_the_search_decides_and_not_the_noise_of_what_was_measured() -> None:
    noisy = need({1: 100, 2: 107}, searched=1)
    assert written(noisy)["cpus-per-gpu"] == "1"
    assert not noisy.sensitive
    assert any(says(said, "sizing.cpu_lines.no_faster") for said in noisy.remarks(None))


def test_a_single_measurement_says_nothing_of_fewer_cpus() -> None:
    table = Matrix(1, (1.0, 2.0), (1.0,), ((50.0,), (100.0,)), ("interpolated", "measured"), searched=2.0)
    job = CpuNeed(table, 1, None, modelled=False)
    assert not job.sensitive
    assert job.gain == 0  # of which half of the rate on one CPU, that nobody measured, is no part
    assert list(job.remarks(None)) == [wording("sizing.cpu_lines.one_number_measured")]


def test_memory_is_left_out_where_nothing_is_known_of_it() -> None:
    assert "mem-per-gpu" not in written(need({1: 10}, process_bytes=None))


def test_each_line_says_where_its_number_comes_from() -> None:
    cpus, memory = cached().lines()
    assert cpus.why == wording("sizing.cpu_lines.share_of_most", share=100, unit="samples/s", origin="measured")
    assert memory.why == "processes 10.0 GiB (measured) + cache 30.0 GiB (formula) + guard 1.0 GiB (assumed)"


def test_more_than_the_share_has_its_price_and_the_rate_of_the_share_beside_it() -> None:
    wants = need({2: 100, 4: 200, 8: 400}, gpus=2)
    told = " ".join(wants.remarks(NODE))
    assert says(told, "sizing.cpu_lines.more_than_share", cpus=8, cpus2=4, more=2)
    assert says(told, "sizing.cpu_lines.more_than_share", rate=200, unit="samples/s", rate2=50)
    assert wording("sizing.cpu_lines.more_than_tried") + " may help" in told


def test_less_than_the_share_is_what_others_get() -> None:
    told = " ".join(need({1: 100, 2: 101}, searched=1).remarks(NODE))
    assert says(told, "sizing.cpu_lines.cpus_left", cpus=4, left=3)
    assert says(told, "sizing.cpu_lines.memory_left", memory_bytes="64.0 GiB", left_bytes="61.5 GiB")


def test_a_node_without_gpus_has_no_share_of_them() -> None:
    assert NodeResources(8, 32 * GIB).share is None
    assert not any("share" in said for said in need({1: 1, 2: 2}).remarks(NodeResources(8, 32 * GIB)))


@pytest.mark.parametrize(
    ("memory_bytes", "said"),
    [(1, "1M"), (2**20, "1M"), (2**20 + 1, "2M"), (3.5 * GIB, "3584M"), (4 * GIB, "4G"), (4 * GIB + 2, "5G")],
)
def test_slurm_reads_sizes_in_powers_of_two_and_gets_no_less_than_is_needed(memory_bytes: float, said: str) -> None:
    assert slurm_size(memory_bytes) == said


@given(
    rates=st.lists(st.floats(0.1, 1e6), min_size=1, max_size=8),
    gpus=st.integers(0, 8),
    process_bytes=st.floats(2**20, 2**40),
)
def test_whatever_was_measured_the_lines_give_the_processes_their_memory_and_the_cpus_that_were_found(
    rates: list[float], gpus: int, process_bytes: float
) -> None:
    job = need({at + 1: rate for at, rate in enumerate(rates)}, gpus=gpus, process_bytes=process_bytes)
    lines = written(job)
    assert int(lines["cpus-per-gpu" if gpus else "cpus-per-task"]) == job.demand.cpus
    value = lines["mem-per-gpu" if gpus else "mem"]
    asked = int(value[:-1]) * (GIB if value.endswith("G") else 2**20) * max(1, gpus)
    assert asked >= process_bytes + max(GUARD * process_bytes, GUARD_LEAST_BYTES) - 1
    list(job.remarks(NODE))
