"""The memory axis of a job's sensitivity, worked out and not run: the model of a cache that never evicts (MinIO).

Synergy (section 3.1) measures CPUs only. With a cache that keeps the same m bytes of the data from epoch to epoch, what
an epoch has to fetch is known: D - m bytes from the disk, m from memory. Fetching goes on beside the work on what is
there already, so an epoch takes as long as the slower of both:

    rate(c, m) = samples / max(samples / rate(c), (D - m) / disk + m / memory)

The memory that the processes need comes first: with less, the job does not run, and what is above it caches. This is
the best that a loader can do that caches in such a way: where fetching and working take about as long, a run of misses
makes the work wait, which cost up to a tenth with 32 items fetched ahead (tests/sizing/cpu/test_minio.py). The page
cache is no such cache: it evicts what is next needed, and with less memory than the data is of less use than this says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sizing.cpu.matrix import Matrix
from sizing.cpu.search import Found, curve
from sizing.estimate import Origin

_PARTS = 8  # of what can be cached, for each of which the axis has a column


@dataclass(frozen=True, slots=True)
class Loading:
    """What a job reads in an epoch, and how fast it can: `samples` in the unit of its rates, bytes, and bytes/s.

    `process_bytes` is what its processes need beside the cache. All is of the whole job.
    """

    samples: float
    dataset_bytes: float
    process_bytes: float
    disk_bytes_per_s: float
    memory_bytes_per_s: float

    def __post_init__(self) -> None:
        if min(self.samples, self.dataset_bytes, self.disk_bytes_per_s, self.memory_bytes_per_s) <= 0:
            raise ValueError("samples, their bytes and both bandwidths are more than 0")
        if self.process_bytes < 0:
            raise ValueError("processes need 0 bytes or more")

    def fetch_s(self, memory_bytes: float) -> float:
        """Seconds that fetching takes in an epoch, with so much memory for processes and cache."""
        cached = min(self.dataset_bytes, max(0.0, memory_bytes - self.process_bytes))
        return (self.dataset_bytes - cached) / self.disk_bytes_per_s + cached / self.memory_bytes_per_s

    def shown(self, rate: float) -> Loading:
        """The same of a job that did `rate` on this data: memory is as fast at least as that took, and as the disk.

        What one thread copies says little of a loader with many workers, and what comes from the disk passes memory.
        """
        least = max(self.disk_bytes_per_s, self.dataset_bytes * rate / self.samples)
        return replace(self, memory_bytes_per_s=max(self.memory_bytes_per_s, least))


def memory_rates(rate: float, loading: Loading, memory_bytes: Sequence[float]) -> tuple[float, ...]:
    """The rate with each memory of a job that does `rate` when nothing has to be fetched; 0 where it does not run."""
    return tuple(
        min(rate, loading.samples / loading.fetch_s(each)) if each >= loading.process_bytes else 0.0
        for each in memory_bytes
    )


def memory_axis(rate: float, loading: Loading, most_bytes: float) -> tuple[float, ...]:
    """Memory worth telling of a job that does `rate` at best: its processes', and parts of what can be cached beside.

    Among them is the least with which fetching does not slow it. None is more than `most_bytes`, what there is; where
    the processes need more, that alone.
    """
    loading, base = loading.shown(rate), loading.process_bytes
    if base > most_bytes:
        return (most_bytes,)
    room = min(loading.dataset_bytes, most_bytes - base)
    caches = {room * part / _PARTS for part in range(_PARTS + 1)}
    per_byte = 1 / loading.disk_bytes_per_s - 1 / loading.memory_bytes_per_s
    if per_byte > 0 and rate > 0:
        enough = (loading.dataset_bytes / loading.disk_bytes_per_s - loading.samples / rate) / per_byte
        if 0 < enough < room * (1 - 1e-9):
            caches.add(enough)
    return tuple(sorted({base + cache for cache in caches if base + cache >= 1})) or (most_bytes,)


def matrix(found: Found, gpus: int, loading: Loading | None, memory_bytes: Sequence[float]) -> Matrix:
    """The sensitivity of a job whose CPUs were searched, with each of the memories (ascending).

    All that is given is of the whole job, and so are the rates; CPUs and memory of the matrix are for each GPU (one
    where there is none). Without `loading`, memory counts for nothing.
    """
    share = max(1, gpus)
    rates = curve(found)
    loading = loading.shown(found.best) if loading else None
    measured: Origin = "measured"
    return Matrix(
        gpus=share,
        cpus=tuple(cpus / share for cpus in found.cpus),
        memory_bytes=tuple(each / share for each in memory_bytes),
        rates=tuple(
            memory_rates(rate, loading, memory_bytes) if loading else (rate,) * len(memory_bytes)
            for rate in rates.values()
        ),
        origins=tuple(measured if cpus in found.tried else "interpolated" for cpus in found.cpus),
        searched=found.demand / share,
    )
