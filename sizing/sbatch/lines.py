"""The #SBATCH lines of a plan, each with the reason for its value."""

from __future__ import annotations

from dataclasses import dataclass

from sizing.base.plan import GpuPlan
from sizing.inventory.gpus import GIB
from sizing.inventory.pools import GpuPool

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


def written(plan: GpuPlan, pool: GpuPool, tasks_per_node: int | None = None) -> tuple[SbatchLine, ...]:
    """Return the lines that ask for a plan's GPUs, and for their share of the nodes' CPUs and memory.

    `tasks_per_node` is the number of tasks that the user's script has on a node (torchrun wants one); by default there
    is one per GPU.
    """
    per_node = plan.gpus // plan.nodes
    tasks = per_node if tasks_per_node is None else tasks_per_node
    fitting = pool.having(per_node)
    cpus = min(group.cpus * per_node // group.gpus for group in fitting)
    memory_bytes = min(group.memory_bytes * per_node // group.gpus for group in fitting)
    gres = f"gpu:{pool.gres_type}:{per_node}" if pool.gres_type else f"gpu:{per_node}"
    of_node = f"the share of {per_node} of {max(group.gpus for group in fitting)} GPUs in the node's"
    lines = [
        SbatchLine("partition", plan.partition, f"has {pool.gpu.name}"),
        SbatchLine("nodes", str(plan.nodes), f"{plan.gpus} GPU{'s'[: plan.gpus - 1]}: {_spread(plan)}"),
        SbatchLine(
            "ntasks-per-node", str(tasks), "one task a GPU" if tasks_per_node is None else "as the script has it"
        ),
        SbatchLine("gres", gres, _memory(plan)),
    ]
    if cpus >= tasks:
        lines.append(SbatchLine("cpus-per-task", str(cpus // tasks), f"{of_node} CPUs (proportional share)"))
    if memory_bytes >= _MEBIBYTE:
        sizes = sorted((group.memory_bytes for group in fitting for _ in group.nodes), reverse=True)
        lines.append(_host(plan, memory_bytes, sizes[plan.nodes - 1], of_node))
    if pool.constraint:
        lines.append(
            SbatchLine(
                "constraint", pool.constraint, f"keeps other GPUs away that Slurm calls {pool.gres_type or 'gpu'}"
            )
        )
    return tuple(lines)


def _host(plan: GpuPlan, share_bytes: int, most_bytes: int, of_node: str) -> SbatchLine:
    """Return the line for the share of a node's memory, or more if earlier jobs used more, up to `most_bytes`."""
    share = f"{of_node} memory (proportional share)"
    if plan.host_bytes is None:
        return SbatchLine("mem", _size(share_bytes), share)
    used = f"jobs that ran used {plan.host_bytes / GIB:.1f} GiB at most (measured)"
    wanted = -(-int(plan.host_bytes * HOST_GUARD) // GIB) * GIB  # rounded up to whole GiB
    if wanted <= share_bytes:
        return SbatchLine("mem", _size(share_bytes), f"{share}; {used}")
    return SbatchLine("mem", _size(min(wanted, most_bytes)), used)


def lines(plan: GpuPlan, pool: GpuPool, tasks_per_node: int | None = None) -> tuple[str, ...]:
    """Return the lines of a plan without the reasons, as sbatch reads them."""
    return tuple(line.text for line in written(plan, pool, tasks_per_node))


def commented(texts: tuple[str, ...], reasons: tuple[str, ...]) -> tuple[str, ...]:
    """Return the lines with their reasons behind them, in a column; sbatch takes a bare # as the start of a comment."""
    width = max(map(len, texts), default=0)
    return tuple(f"{text:<{width}}  # {why}" for text, why in zip(texts, reasons, strict=True))


def _spread(plan: GpuPlan) -> str:
    sizes = [("dp", plan.parallel.dp), ("tp", plan.parallel.tp), ("fsdp", plan.parallel.fsdp)]
    return " x ".join(f"{name} {size}" for name, size in sizes if size > 1 or name == "dp")


def _memory(plan: GpuPlan) -> str:
    told = f"{plan.peak.high / GIB:.1f} of {plan.gpu_bytes / GIB:.1f} GiB a GPU with the guard band"
    return f"{told} ({plan.peak.origin})"


def _size(memory_bytes: int) -> str:
    """Return the size rounded down to a unit of Slurm: whole gibibytes from 4 on, else mebibytes."""
    whole = memory_bytes // GIB
    return f"{whole}G" if whole >= 4 else f"{memory_bytes // _MEBIBYTE}M"
