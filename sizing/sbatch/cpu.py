"""The #SBATCH lines of a job from its sensitivity matrix, and their effect on other jobs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from sizing.base.estimate import Origin
from sizing.cpu.sensitivity.matrix import CpuMemory, Matrix
from sizing.sbatch.lines import SbatchLine

GUARD = 0.1
GUARD_LEAST_BYTES = 512 * 2**20
"""Extra memory to ask for, as a share of the processes' own: a run of seconds has not seen all (assumed)."""

_MEBIBYTE, _GIBIBYTE = 2**20, 2**30


@dataclass(frozen=True, slots=True)
class NodeResources:
    """The resources of the job's node; a job's proportional share of them is its share of the GPUs."""

    cpus: int
    memory_bytes: float
    gpus: int = 0

    @property
    def share(self) -> CpuMemory | None:
        """CPUs and memory for each GPU; None for a node without GPUs."""
        return CpuMemory(self.cpus / self.gpus, self.memory_bytes / self.gpus) if self.gpus else None


@dataclass(frozen=True, slots=True)
class CpuNeed:
    """The result of a profile: `gpus` is 0 for a job without GPUs, which the matrix counts as one.

    `process_bytes` is the most memory of the whole job's processes, None if it was not seen. `modelled` says whether
    the matrix's memory axis is meaningful: without the size of the data set it has a single column. `unit` is that of
    the rates, `available` the total number of CPUs for the job (0: unknown).
    """

    matrix: Matrix
    gpus: int
    process_bytes: float | None
    modelled: bool
    unit: str = "samples/s"
    available: int = 0

    @property
    def demand(self) -> CpuMemory:
        """The least that is as good as the best, for each GPU."""
        return self.matrix.demand()

    @property
    def cpus(self) -> int:
        """Whole CPUs to ask for, for each GPU."""
        return math.ceil(self.demand.cpus - 1e-9)

    @property
    def memory_bytes(self) -> float | None:
        """Memory to ask for, for each GPU, with the guard band; None if unknown."""
        if self.process_bytes is None and not self.modelled:
            return None
        each = max(1, self.gpus)
        process = 0.0 if self.process_bytes is None else self.process_bytes / each
        need = max(process, self.demand.memory_bytes) if self.modelled else process
        return need + max(GUARD * process, GUARD_LEAST_BYTES / each)

    @property
    def gain(self) -> float:
        """The gain of the best rate over that of the fewest measured CPUs: 0.1 is 10 %."""
        rates = [row[-1] for row in self.matrix.rates]
        origins = self.matrix.origins or ("measured",) * len(rates)
        least = next((rate for rate, of in zip(rates, origins, strict=True) if rate > 0 and of == "measured"), 0.0)
        return max(rates) / least - 1 if least else 0.0

    @property
    def sensitive(self) -> bool:
        """Whether more CPUs than the fewest tried make it faster by more than the search's threshold.

        False for a single measurement, which says nothing about fewer CPUs.
        """
        return self.measured > 1 and self.demand.cpus > self.matrix.cpus[0]

    @property
    def measured(self) -> int:
        """The number of CPU counts that were measured."""
        return self.matrix.origins.count("measured") if self.matrix.origins else len(self.matrix.cpus)

    @property
    def memory_matters(self) -> bool:
        """Whether any memory beyond the least tried makes it faster."""
        return any(min(row) < max(row) for row in self.matrix.rates)

    def origin(self) -> Origin:
        """Return the origin of the rate with the requested CPUs."""
        at = self.matrix.cpus.index(self.demand.cpus)
        return self.matrix.origins[at] if self.matrix.origins else "measured"

    def lines(self) -> tuple[SbatchLine, ...]:
        """Return the lines that the job's script should have."""
        row = self.matrix.cpus.index(self.demand.cpus)
        share = self.matrix.rates[row][-1] / self.matrix.best
        why = f"{100 * share:.0f} % of the most {self.unit} there are ({self.origin()})"
        each = "gpu" if self.gpus else "task"
        found = [SbatchLine(f"cpus-per-{each}", str(self.cpus), why)]
        if (memory := self.memory_bytes) is not None:
            found.append(SbatchLine("mem-per-gpu" if self.gpus else "mem", slurm_size(memory), self._memory_why()))
        return tuple(found)

    def _memory_why(self) -> str:
        each = max(1, self.gpus)
        process = (self.process_bytes or 0.0) / each
        said = [f"processes {_amount(process)} (measured)"] if self.process_bytes is not None else []
        if self.modelled:
            cache = max(0.0, self.demand.memory_bytes - process)
            said.append(f"cache {_amount(cache)} (formula)")
        said.append(f"guard {_amount(max(GUARD * process, GUARD_LEAST_BYTES / each))} (assumed)")
        return " + ".join(said)

    def remarks(self, node: NodeResources | None) -> Iterator[str]:
        """Yield what the lines mean against the proportional share of a node, one sentence each."""
        if self.measured == 1:
            yield "one number of CPUs was measured, which says nothing of others"
        elif not self.sensitive:
            yield (
                f"more CPUs do not make it faster: {_gain(self.gain)} from {self.matrix.cpus[0]:g} to "
                f"{self.matrix.cpus[-1]:g}"
            )
        elif self.demand.cpus >= self.matrix.cpus[-1]:
            all_of_them = self.matrix.cpus[-1] * max(1, self.gpus) >= self.available > 0
            which = "more than are here" if all_of_them else "more than were tried (--cpus)"
            yield f"still faster with {self.demand.cpus:g} CPUs than with fewer: {which} may help"
        share = None if node is None else node.share
        if share is not None and self.gpus:
            yield from self._beside(share)

    def _beside(self, share: CpuMemory) -> Iterator[str]:
        """Yield the price of more than the share, or what less of it leaves to others."""
        all_memory = self.matrix.memory_bytes[-1]
        left = math.floor(share.cpus) - self.cpus
        if self.cpus > share.cpus:
            rate = self.matrix.rate(CpuMemory(share.cpus, share.memory_bytes if self.modelled else all_memory))
            more = (self.cpus - share.cpus) * self.gpus / share.cpus
            yield (
                f"{self.cpus} CPUs a GPU are more than the node's share of {share.cpus:g}: they are the CPUs of "
                f"{more:.2g} other GPUs, which nobody may then be able to use; with the share it makes {rate:.3g} "
                f"{self.unit}, {100 * rate / self.matrix.best:.0f} % of the most"
            )
        elif left > 0:
            yield f"of the node's share of {share.cpus:g} CPUs a GPU, {left} are left to other jobs"
        memory = self.memory_bytes
        if memory is not None and memory > share.memory_bytes:
            yield (
                f"{_amount(memory)} a GPU are more than the node's share of {_amount(share.memory_bytes)}: "
                "the GPUs beside it may be left without memory"
            )
        elif memory is not None and memory < share.memory_bytes:
            left_bytes = share.memory_bytes - memory
            yield (
                f"of the node's share of {_amount(share.memory_bytes)} of memory a GPU, {_amount(left_bytes)} are left "
                "to other jobs"
            )


def slurm_size(memory_bytes: float) -> str:
    """Return the size rounded up to a unit of Slurm (powers of two): whole gibibytes from 4 on, else mebibytes."""
    if memory_bytes >= 4 * _GIBIBYTE:
        return f"{math.ceil(memory_bytes / _GIBIBYTE - 1e-9)}G"
    return f"{max(1, math.ceil(memory_bytes / _MEBIBYTE - 1e-9))}M"


def _amount(count: float) -> str:
    return f"{count / _GIBIBYTE:.1f} GiB" if count >= _GIBIBYTE else f"{count / _MEBIBYTE:.0f} MiB"


def _gain(gain: float) -> str:
    return f"{100 * gain:+.0f} %"
