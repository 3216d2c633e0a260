"""The memory axis of a job's sensitivity, computed and not run: the model of a cache that never evicts (MinIO).

Synergy (section 3.1) measures CPUs only. With a cache that keeps the same m bytes of the data from epoch to epoch, the
fetches of an epoch are known: D - m bytes from the disk, m from memory. Fetching overlaps the work on data already
there, so an epoch takes as long as the slower of both:

    rate(c, m) = samples / max(samples / rate(c), (D - m) / disk + m / memory)

The processes' memory comes first: with less, the job does not run, and memory above it caches. This is the best that a
loader with such a cache can do: if fetching and working take about as long, a run of misses makes the work wait, which
cost up to a tenth with 32 items fetched ahead (tests/sizing/cpu/sensitivity/test_cache_model.py). The page cache is not
such a cache: it evicts data that is needed next, and with less memory than the data it helps less than this says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sizing.base.estimate import Origin
from sizing.cpu.sensitivity.matrix import Matrix
from sizing.cpu.sensitivity.search import SearchState, curve

_PARTS = 8  # columns of the axis, as parts of the cacheable data


@dataclass(frozen=True, slots=True)
class Loading:
    """The data that a job reads in an epoch, and its speed: `samples` in the unit of its rates, bytes, and bytes/s.

    `process_bytes` is the memory of its processes without the cache. All values are for the whole job.
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
        """Return the seconds that fetching takes in an epoch, with `memory_bytes` for processes and cache."""
        cached = min(self.dataset_bytes, max(0.0, memory_bytes - self.process_bytes))
        return (self.dataset_bytes - cached) / self.disk_bytes_per_s + cached / self.memory_bytes_per_s

    def shown(self, rate: float) -> Loading:
        """Return the same for a job that did `rate` here: memory is at least as fast as that took, and as the disk.

        The copy speed of one thread says little about a loader with many workers, and data from the disk passes memory.
        """
        least = max(self.disk_bytes_per_s, self.dataset_bytes * rate / self.samples)
        return replace(self, memory_bytes_per_s=max(self.memory_bytes_per_s, least))


def memory_rates(rate: float, loading: Loading, memory_bytes: Sequence[float]) -> tuple[float, ...]:
    """Return the rates by memory of a job that does `rate` without any fetching; 0 if it does not run."""
    return tuple(
        min(rate, loading.samples / loading.fetch_s(each)) if each >= loading.process_bytes else 0.0
        for each in memory_bytes
    )


def memory_axis(rate: float, loading: Loading, most_bytes: float) -> tuple[float, ...]:
    """Return memory sizes to show for a job that does `rate` at best: its processes', and parts of the cacheable data.

    Among them is the least with which fetching does not slow it. None is more than `most_bytes`, the memory of the
    node; if the processes need more, that is the only one.
    """
    loading, base = loading.shown(rate), loading.process_bytes
    if base > most_bytes:
        return (most_bytes,)
    cacheable = min(loading.dataset_bytes, most_bytes - base)
    caches = {cacheable * part / _PARTS for part in range(_PARTS + 1)}
    per_byte = 1 / loading.disk_bytes_per_s - 1 / loading.memory_bytes_per_s
    if per_byte > 0 and rate > 0:
        enough = (loading.dataset_bytes / loading.disk_bytes_per_s - loading.samples / rate) / per_byte
        if 0 < enough < cacheable * (1 - 1e-9):
            caches.add(enough)
    return tuple(sorted({base + cache for cache in caches if base + cache >= 1})) or (most_bytes,)


def matrix(found: SearchState, gpus: int, loading: Loading | None, memory_bytes: Sequence[float]) -> Matrix:
    """Return the sensitivity of a job whose CPUs were searched, with each of the memories (ascending).

    All arguments are for the whole job, and so are the rates; CPUs and memory of the matrix are per GPU (one if there
    is none). Without `loading`, memory has no effect.
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
