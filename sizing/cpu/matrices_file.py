"""Files of sensitivity matrices: the public ones of Synergy, and others of the same form with their own axes."""

from __future__ import annotations

import difflib
import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sizing.base.errors import UsageError
from sizing.base.json_fields import Fields, decoded
from sizing.cpu.sensitivity.matrix import Matrices, Matrix, Recorded

GB = 10**9
CPUS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 9.0, 12.0, 24.0)
"""Default rows, CPUs per GPU: those of Synergy's servers of 8 GPUs and 24 CPUs."""
MEMORY_GB = (20.8, 62.5, 125.0, 187.5, 250.0)
"""Default columns, memory per GPU; a file with four columns lacks the first."""
_MOST_BYTES = 64 * 2**20
_MOST = 2.0**63  # largest number: no rate or number of CPUs or GB is so large, and nothing computed from them overflows
_FARTHEST = 1e12  # largest ratio of a job's rates: more than any real one, and still safe to compute with
_KNOWN = (
    *("class", "gpus", "iteration_s", "throughput", "cpus_per_gpu", "memory_gb_per_gpu", "cpus_searched"),
    *("cpus", "memory_gb", "speedup"),  # the demand as the public file has it, which is computed here instead
)


def load(path: Path) -> Matrices:
    """Return the matrices of a file; raise UsageError with the place and what to write there if it is malformed."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; name a file of matrices") from None
    if len(raw) > _MOST_BYTES:
        raise UsageError(f"{path} has more than {_MOST_BYTES >> 20} MiB: no file of matrices is so large")
    try:
        return parse(raw.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start}): name a file of matrices") from None


def parse(text: str, name: str = "the matrices") -> Matrices:
    """Return the matrices of a JSON text, an object with one object per job; raise UsageError as `load` does.

    Each has `throughput`, one row per number of CPUs, one column per size of memory. `cpus_per_gpu` and
    `memory_gb_per_gpu` (ascending lists) give these, by default the axes of the public file. `cpus_searched` is the
    number of CPUs that a search found sufficient, if the rates were measured with few of them. Rows and columns at the
    end that are all 0 stand for servers that do not exist, and are left out.
    """
    data = decoded(text, name)
    whole = Fields(name, data)
    if not data:
        raise UsageError(f"{name} has no matrices: give an object of one for each job")
    for key in data:
        if not key or not key.isprintable():
            raise UsageError(f"{name}: {key!r} is no name of a job: give a text of one line")
    return {key: _recorded(whole.inner(key, _KNOWN), key, data[key]) for key in data}


def one(matrices: Matrices, name: str) -> Recorded:
    """Return the matrix of a name; raise UsageError with the nearest name if there is none."""
    if name in matrices:
        return matrices[name]
    near = difflib.get_close_matches(name, matrices, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(itertools.islice(matrices, 8))}"
    raise UsageError(f"no model {name} among the matrices: {hint}")


def to_json(matrices: Iterable[Recorded]) -> dict[str, Any]:
    """Return the matrices as in a file, with their axes."""
    return {
        each.name: {
            "class": each.kind,
            "gpus": each.matrix.gpus,
            "iteration_s": each.iteration_s,
            "cpus_per_gpu": list(each.matrix.cpus),
            "memory_gb_per_gpu": [memory_bytes / GB for memory_bytes in each.matrix.memory_bytes],
            "throughput": [list(row) for row in each.matrix.rates],
            **({} if each.matrix.searched is None else {"cpus_searched": each.matrix.searched}),
        }
        for each in matrices
    }


def _recorded(fields: Fields, name: str, data: dict[str, Any]) -> Recorded:
    gpus, kind = fields.count("gpus", least=1), fields.text("class", "")
    iteration_s = fields.number("iteration_s", 0.0)
    rates = _table(fields, data.get("throughput"))
    cpus = _axis(fields, data, "cpus_per_gpu", len(rates), CPUS, "rows")
    memory_gb = _axis(fields, data, "memory_gb_per_gpu", len(rates[0]), MEMORY_GB, "columns")
    while not any(rates[-1]):
        rates.pop()
    searched = fields.number_or_none("cpus_searched")
    if searched is not None and (searched not in cpus[: len(rates)] or not any(rates[cpus.index(searched)])):
        raise fields.wrong("cpus_searched", "one of its CPUs for each GPU with which it runs")
    columns = max(j + 1 for row in rates for j, rate in enumerate(row) if rate)
    return Recorded(
        name=name,
        kind=kind,
        matrix=Matrix(
            gpus=gpus,
            cpus=cpus[: len(rates)],
            memory_bytes=tuple(each * GB for each in memory_gb[:columns]),
            rates=tuple(tuple(row[:columns]) for row in rates),
            searched=searched,
        ),
        iteration_s=iteration_s,
    )


def _table(fields: Fields, rows: Any) -> list[list[float]]:
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) and row for row in rows):
        raise UsageError(f"{fields.where}: throughput is no table: give a list of rows, each a list of rates")
    for at, row in enumerate(rows, start=1):
        if len(row) != len(rows[0]):
            raise UsageError(
                f"{fields.where}: row {at} of throughput has {len(row)} rates, the first {len(rows[0])}: give as many"
            )
        for rate in row:
            if not _is_number(rate):
                shown = json.dumps(rate)[:40]
                raise UsageError(f"{fields.where}: row {at} of throughput has {shown}: give numbers of 0 or more")
    if not any(map(any, rows)):
        raise UsageError(f"{fields.where}: throughput is 0 everywhere: give rates of a job that runs")
    least, most = min(rate for row in rows for rate in row if rate), max(map(max, rows))
    if most / _FARTHEST > least:
        raise UsageError(f"{fields.where}: throughput has {least:g} beside {most:g}: give 0 where the job does not run")
    return [list(map(float, row)) for row in rows]


def _axis(
    fields: Fields, data: dict[str, Any], key: str, count: int, usual: Sequence[float], what: str
) -> tuple[float, ...]:
    """Return the file's axis, or that of the public file: its last columns if the first is absent."""
    if key in data:
        axis = data[key]
        if not isinstance(axis, list) or not all(map(_is_number, axis)) or len(axis) != count:
            raise UsageError(f"{fields.where}: {key} is no list of {count} numbers: give one for each of the {what}")
        if axis[0] <= 0 or any(a >= b for a, b in itertools.pairwise(axis)):
            raise UsageError(f"{fields.where}: {key} does not ascend from above 0: put the {what} in order")
        return tuple(map(float, axis))
    if what == "rows" and count == len(usual):
        return tuple(usual)
    if what == "columns" and count in (len(usual), len(usual) - 1):
        return tuple(usual[-count:])
    raise UsageError(f"{fields.where}: what the {count} {what} of throughput are is not known: give {key}, a list")


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, int | float) and 0 <= value <= _MOST
