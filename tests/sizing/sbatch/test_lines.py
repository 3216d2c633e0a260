"""The lines of a plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sizing.base.estimate import Estimate
from sizing.base.parallel import Parallel
from sizing.choice.fit import GpuPlan
from sizing.inventory.inventory import PartitionOffer
from sizing.inventory.pools import GpuPool, pools
from sizing.inventory.shapes import GpuShape
from sizing.sbatch.lines import SbatchLine, commented
from tests.sizing.plans_of import GIB, group, inventory
from tests.support.messages import wording

ANY = Estimate(1, 1, 1, "assumed")


def written(
    pool: GpuPool, gpus: int, nodes: int, parallel: Parallel, tasks_per_node: int | None = None
) -> tuple[SbatchLine, ...]:
    peak = Estimate(30 * GIB, 30 * GIB, 32 * GIB, "traced")
    shape = GpuShape(pool, nodes, gpus // nodes)
    return GpuPlan(shape, (parallel,), 8 * parallel.shares, step_s=ANY, peak=peak, cost=ANY).lines(tasks_per_node)


def texts(lines: Iterable[SbatchLine]) -> tuple[str, ...]:
    return tuple(line.text for line in lines)


def one_pool(*groups: object) -> GpuPool:
    return next(iter(pools(inventory(PartitionOffer("gpu", groups)))))  # type: ignore[arg-type]


def test_a_plan_asks_for_its_gpus_and_their_share_of_the_node() -> None:
    pool = one_pool(group(gpus=4, cpus=66, gib=503, gres_type="nvidia_a100"))
    assert texts(written(pool, 2, 1, Parallel(2))) == (
        "#SBATCH --partition=gpu",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks-per-node=2",
        "#SBATCH --gres=gpu:nvidia_a100:2",
        "#SBATCH --cpus-per-task=16",  # 66 CPUs x 2 of 4 GPUs = 33 for 2 tasks, rounded down
        "#SBATCH --mem=251G",  # 503 x 2 / 4, rounded down
    )


def test_several_nodes_are_asked_for_with_the_gpus_of_each() -> None:
    pool = one_pool(group(gpus=4))
    assert texts(written(pool, 8, 2, Parallel(4, 2)))[1:4] == (
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=4",
        "#SBATCH --gres=gpu:a100:4",
    )


def test_of_unlike_nodes_the_smallest_share_counts_and_those_without_enough_gpus_do_not() -> None:
    small, large = group("s", gpus=2, cpus=4, gib=16), group("l", gpus=4, cpus=32, gib=256)
    other = group("o", gpus=4, cpus=64, gib=128)
    pool = one_pool(small, large, other)
    assert texts(written(pool, 4, 1, Parallel(4)))[4:] == (
        "#SBATCH --cpus-per-task=8",
        "#SBATCH --mem=128G",
    )


def test_a_script_with_one_task_a_node_gets_all_cpus_for_it() -> None:
    pool = one_pool(group(gpus=4, cpus=64))
    lines = texts(written(pool, 4, 1, Parallel(4), tasks_per_node=1))
    assert "#SBATCH --ntasks-per-node=1" in lines
    assert "#SBATCH --cpus-per-task=64" in lines


def test_gpus_without_a_type_and_small_memory_are_written_as_slurm_counts_them() -> None:
    pool = one_pool(replace(group(gpus=4, cpus=2, gres_type=""), memory_bytes=7 * GIB))
    lines = texts(written(pool, 1, 1, Parallel()))
    assert "#SBATCH --gres=gpu:1" in lines
    assert "#SBATCH --mem=1792M" in lines
    assert not any("cpus-per-task" in line for line in lines), "half a CPU cannot be asked for"


def test_every_line_says_where_its_number_comes_from() -> None:
    pool = one_pool(group(gpus=4, features=("nvlink",)))
    lines = written(pool, 2, 1, Parallel(1, 2))
    reasons = {line.option: line.why for line in lines}
    assert reasons["gres"] == wording("sizing.emit.high_of_gpu", high=32.0, gpu_bytes=80.0) + " (traced)"
    assert "dp 1 x tp 2" in reasons["nodes"]
    assert reasons["mem"].endswith("(proportional share)")
    shown = commented(texts(lines), tuple(line.why for line in lines))
    assert len({line.index("  # ") for line in shown}) == 1


def test_regression_gpus_without_a_name_were_called_by_their_number() -> None:
    kept = group("a", gpus=4, gres_type="", features=("big",))
    other = replace(group("v", gpus=4, gres_type="", features=("old",)), gpu_type="v100")
    pool = one_pool(kept, other)
    constraint = written(pool, 2, 1, Parallel(2))[-1]
    assert (constraint.text, constraint.why) == (
        "#SBATCH --constraint=big",
        wording("sizing.emit.keeps_others_away", gres_type="gpu"),
    )
