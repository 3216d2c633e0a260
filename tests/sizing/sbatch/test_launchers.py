"""The commands of batch scripts that start processes: each launcher's options, as people write them."""

from __future__ import annotations

import pytest

from sizing.sbatch.launchers import Launch, launches

LAUNCHERS = [
    ("python train.py", Launch("", 1, 1)),
    ("torchrun train.py", Launch("torchrun", 1, 1, by_node=True)),
    ("torchrun --standalone --nproc-per-node=2 train.py", Launch("torchrun", 1, 2, by_node=True)),
    ("srun torchrun --nproc-per-node=8 finetune.py", Launch("torchrun", 1, 8, by_node=True)),
    ("srun torchrun --nnodes=2 \\\n  --nproc-per-node=4 train.py", Launch("torchrun", 2, 4, by_node=True)),
    ("srun torchrun --nnodes=$N --nproc_per_node gpu train.py", Launch("torchrun", None, None, by_node=True)),
    ("srun torchrun --nnodes=1:4 --nproc-per-node=8 train.py", Launch("torchrun", None, 8, by_node=True)),
    (
        "srun --container-image=/a/b.sqsh /v/bin/torchrun --nproc-per-node=8 t.py",
        Launch("torchrun", 1, 8, by_node=True),
    ),
    (
        'L="python -m torch.distributed.run --nproc_per_node 8 --nnodes $N"\nsrun bash -c "$L t.py"',
        Launch("torch.distributed.run", None, 8, by_node=True),
    ),
    ("accelerate  launch train.py", Launch("accelerate launch", 1, None, by_node=True)),
    (
        "srun accelerate launch --num_processes 16 --num_machines 2 t.py",
        Launch("accelerate launch", 2, None, 16, by_node=True),
    ),
    ("python -m accelerate.commands.launch t.py", Launch("accelerate.commands.launch", 1, None, by_node=True)),
    ("deepspeed --num_gpus=4 t.py --deepspeed ds.json", Launch("deepspeed", 1, 4, by_node=True)),
    ("deepspeed --hostfile=h t.py", Launch("deepspeed", None, None, by_node=True)),
    ("deepspeed --num_nodes $N t.py", Launch("deepspeed", None, None, by_node=True)),
    ("srun python train.py -n 5", Launch("srun", None, None)),
    ("srun python train.py --deepspeed ds.json", Launch("srun", None, None)),
    ("srun -n8 python train.py", Launch("srun", None, None, 8)),
    ("srun -N 2 --ntasks-per-node=4 ./train.sh --nodes 7", Launch("srun", 2, 4)),
    ("mpirun -np 16 --map-by ppr:8:node python t.py", Launch("mpirun", None, 8)),
    ("mpiexec -n 16 ./solver", Launch("mpiexec", None, None, 16)),
    ("mpirun --npernode 4 python t.py", Launch("mpirun", None, 4)),
    ("pip install deepspeed\nsrun python t.py  # torchrun later", Launch("srun", None, None)),
]


@pytest.mark.parametrize(("command", "launch"), LAUNCHERS)
def test_a_launcher_and_its_numbers_are_recognised(command: str, launch: Launch) -> None:
    assert launches(f"#!/bin/bash\n{command}\n", {}) == (launch,)


@pytest.mark.parametrize(
    ("options", "launch"),
    [
        ({"ntasks-per-node": "4"}, Launch("srun", None, 4)),
        ({"ntasks": "8"}, Launch("srun", None, None, 8)),
        ({"ntasks": "8", "ntasks-per-node": "4"}, Launch("srun", None, 4)),
        ({"ntasks": "$N"}, Launch("srun", None, None)),
    ],
)
def test_the_tasks_of_the_job_are_those_of_its_srun(options: dict[str, str | None], launch: Launch) -> None:
    assert launches("#!/bin/bash\nsrun python train.py\n", options) == (launch,)
    (own,) = launches("#!/bin/bash\nsrun -n 2 python train.py\n", options)
    assert own.total == 2, "its own number comes before the job's"


def test_a_script_that_names_gpus_and_no_launcher_uses_those_of_its_node() -> None:
    (launch,) = launches("#!/bin/bash\npython train.py\n", {"gres": "gpu:4"})
    assert [launch.fills(nodes, gpus) for nodes, gpus in ((1, 4), (1, 1), (2, 4))] == [True, True, False]


def test_every_launch_of_a_script_is_found() -> None:
    found = launches("#!/bin/bash\nsrun hostname\nsrun -n 1 python a.py\n", {})
    assert [launch.total for launch in found] == [None, 1]


@pytest.mark.parametrize(
    ("launch", "filled"),
    [
        (Launch("torchrun", 1, 8), {(1, 8)}),
        (Launch("torchrun", None, 8), {(1, 8), (2, 8)}),
        (Launch("torchrun", None, None), {(1, 4), (1, 8), (2, 4), (2, 8)}),
        (Launch("srun", None, None, 8), {(1, 8), (2, 4)}),
    ],
)
def test_a_launch_fills_the_jobs_with_as_many_gpus_as_it_starts_processes(
    launch: Launch, filled: set[tuple[int, int]]
) -> None:
    assert {(nodes, gpus) for nodes in (1, 2) for gpus in (4, 8) if launch.fills(nodes, gpus)} == filled
