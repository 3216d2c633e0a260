"""The #SBATCH lines of a plan, each with the reason for its value."""

from __future__ import annotations

from dataclasses import dataclass

from sizing.base.estimate import Estimate
from sizing.inventory.gpus import GIB
from sizing.inventory.shapes import GpuShape

_MEBIBYTE = 2**20
HOST_GUARD = 1.1
"""Factor on the node memory that earlier jobs used: samples miss peaks shorter than the sampling interval."""


@dataclass(frozen=True, slots=True)
class SbatchLine:
    """One option of sbatch by its long name, and the reason for its value."""

    option: str
    value: str
    why: str

    @property
    def text(self) -> str:
        """The line as sbatch reads it."""
        return f"#SBATCH --{self.option}={self.value}"


def written(
    shape: GpuShape,
    spread: str,
    peak: Estimate,
    host_bytes: int | None = None,
    tasks_per_node: int | None = None,
    launcher: str = "",
) -> tuple[SbatchLine, ...]:
    """Return the lines that ask for the GPUs of a shape, and for their share of the nodes' CPUs and memory.

    `spread` says how the model is divided over them, `peak` is the memory of a GPU, and `host_bytes` the most that
    earlier jobs used of a node. `tasks_per_node` is the number of tasks that the user's script has on a node, of which
    a `launcher` such as torchrun wants one; by default there is one per GPU.
    """
    pool, per_node = shape.pool, shape.per_node
    tasks = per_node if tasks_per_node is None else tasks_per_node
    fitting = pool.having(per_node)
    cpus = min(group.cpus * per_node // group.gpus for group in fitting)
    memory_bytes = min(group.memory_bytes * per_node // group.gpus for group in fitting)
    gres = f"gpu:{pool.gres_type}:{per_node}" if pool.gres_type else f"gpu:{per_node}"
    of_node = f"the share of {per_node} of {max(group.gpus for group in fitting)} GPUs in the node's"
    needed = f"{peak.high / GIB:.1f} of {pool.gpu_bytes / GIB:.1f} GiB a GPU with the guard band ({peak.origin})"
    tasks_why = "one task a GPU" if tasks_per_node is None else "as the script has it"
    if launcher and tasks_per_node == 1:
        tasks_why = f"{launcher} starts the processes of a node"
    lines = [
        SbatchLine("partition", pool.partition, f"has {pool.gpu.name}"),
        SbatchLine("nodes", str(shape.nodes), f"{shape.gpus} GPU{'s'[: shape.gpus - 1]}: {spread}"),
        SbatchLine("ntasks-per-node", str(tasks), tasks_why),
        SbatchLine("gres", gres, needed),
    ]
    if cpus >= tasks:
        lines.append(SbatchLine("cpus-per-task", str(cpus // tasks), f"{of_node} CPUs (proportional share)"))
    if memory_bytes >= _MEBIBYTE:
        sizes = sorted((group.memory_bytes for group in fitting for _ in group.nodes), reverse=True)
        lines.append(_host(host_bytes, memory_bytes, sizes[shape.nodes - 1], of_node))
    if pool.constraint:
        lines.append(
            SbatchLine(
                "constraint", pool.constraint, f"keeps other GPUs away that Slurm calls {pool.gres_type or 'gpu'}"
            )
        )
    return tuple(lines)


def _host(used_bytes: int | None, share_bytes: int, most_bytes: int, of_node: str) -> SbatchLine:
    """Return the line for the share of a node's memory, or more if earlier jobs used more, up to `most_bytes`."""
    share = f"{of_node} memory (proportional share)"
    if used_bytes is None:
        return SbatchLine("mem", _size(share_bytes), share)
    used = f"jobs that ran used {used_bytes / GIB:.1f} GiB at most (measured)"
    wanted = -(-int(used_bytes * HOST_GUARD) // GIB) * GIB  # rounded up to whole GiB
    if wanted <= share_bytes:
        return SbatchLine("mem", _size(share_bytes), f"{share}; {used}")
    return SbatchLine("mem", _size(min(wanted, most_bytes)), used)


def commented(texts: tuple[str, ...], reasons: tuple[str, ...]) -> tuple[str, ...]:
    """Return the lines with their reasons behind them, in a column; sbatch takes a bare # as the start of a comment."""
    width = max(map(len, texts), default=0)
    return tuple(f"{text:<{width}}  # {why}" for text, why in zip(texts, reasons, strict=True))


def _size(memory_bytes: int) -> str:
    """Return the size rounded down to a unit of Slurm: whole gibibytes from 4 on, else mebibytes."""
    whole = memory_bytes // GIB
    return f"{whole}G" if whole >= 4 else f"{memory_bytes // _MEBIBYTE}M"
