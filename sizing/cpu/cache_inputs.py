"""The basis of a profile's memory axis: the size of the command's data, and the speed of its sources."""

from __future__ import annotations

from dataclasses import dataclass

from sizing.base.errors import SizingError
from sizing.cpu import bandwidth
from sizing.cpu.dataset import DataFiles
from sizing.cpu.runs.measurement import PointResult
from sizing.cpu.sensitivity.cache_model import Loading

_LEAST_READ = 0.01
"""Share of the disk's rate: a command that reads less has its data mapped, or already in memory."""


@dataclass(frozen=True, slots=True)
class Caching:
    """The data set and the two bandwidths; `loading` is None if something is missing, and `why` says what."""

    loading: Loading | None
    why: str = ""
    dataset_bytes: float | None = None
    disk_bytes_s: float | None = None
    memory_bytes_s: float | None = None
    said: tuple[str, ...] = ()


def caching(
    files: DataFiles | None, dataset_bytes: float | None, samples: float | None, best: PointResult, process_bytes: int
) -> Caching:
    """Measure how fast the data comes, and combine it; `best` is the point with the most CPUs.

    Without `samples` (in the unit of the rates) these are computed from the bytes that the command read for each.
    """
    if files is None:
        if dataset_bytes is None:
            return Caching(None, "say --data PATH (the files that the command reads) for the memory that pays")
        return Caching(None, "say --data PATH too: how fast the disk is, is measured on its files", dataset_bytes)
    dataset_bytes = float(files.size_bytes) if dataset_bytes is None else dataset_bytes
    try:
        disk = bandwidth.disk(files.some)
    except SizingError as error:
        return Caching(None, str(error), dataset_bytes)
    memory = bandwidth.memory()
    found = Caching(None, "", dataset_bytes, disk.bytes_per_s, memory.bytes_per_s)
    said = (
        ("the files are all in memory, so how fast the disk is was measured on that: the memory axis says too little",)
        if disk.how == "cached"
        else ()
    )
    if samples is None:
        if best.unit == "as printed":
            why = "the rate is of an unknown unit: read (?P<samples>...) or (?P<step>...) for the memory that pays"
            return _with(found, why, said)
        if best.read_bytes_s < _LEAST_READ * disk.bytes_per_s:
            why = (
                f"the command read {best.read_bytes_s / 1e6:.3g} MB/s of files while it trained: what is mapped, or "
                "kept by itself, cannot be counted; memory for more of its data is taken to be of no use"
            )
            return _with(found, why, said)
        samples = dataset_bytes / (best.read_bytes_s / best.rate.value)
    loading = Loading(samples, dataset_bytes, process_bytes, disk.bytes_per_s, memory.bytes_per_s)
    return Caching(loading, "", dataset_bytes, disk.bytes_per_s, memory.bytes_per_s, said)


def _with(found: Caching, why: str, said: tuple[str, ...]) -> Caching:
    return Caching(None, why, found.dataset_bytes, found.disk_bytes_s, found.memory_bytes_s, said)
