"""Reads the output of the programs of nccl-tests, of any version: times by size, and the link that was measured."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from sizing.base.errors import UsageError
from sizing.cells.comm.table import PROGRAMS

_KINDS = {program: kind for kind, program in PROGRAMS.items()}
# Prefixes that launchers put before each line: `mpirun --tag-output` "[1,0]<stdout>:", `srun --label` "0: ".
_LABEL = re.compile(r"^(?:\[\d+,\d+\](?:<std\w+>)?:?\s?|\s*\d+:\s)")
_PROGRAM = re.compile(r"(\w+_perf)(?:_mpi)?\b")
_BEGINS = re.compile(r"#?\s*nThreads?\s+\d+\s+nGpus?\s+\d+")
_RANK = re.compile(
    r"#?\s*Rank\s+(?P<rank>\d{1,9})(?:\s+Group\s+(?P<group>\d{1,9}))?\s+Pid\s+\d+\s+on\s+(?P<host>\S+)\s+device\s+\d+\s+"
    r"\[[^\]]*\]\s+(?P<gpu>\S.*)"
)
_HEADER = re.compile(r"#?\s*size\s+count\s")
_ROW = re.compile(r"\s*\d+\s+\d+\s")
_TIMESTAMP = re.compile(r"\s+\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s*$")
_BAD = re.compile(r"#?\s*Out of bounds values\s*:\s*(\d+)\s+FAILED")
_END = re.compile(r"#?\s*(?:Out of bounds values|Avg bus bandwidth)\s*:")
# The ratio of busbw to algbw, according to nccl-tests: bytes on the busiest link over those of the tensor.
_OF_OTHERS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}  # times (ranks - 1) / ranks


@dataclass(frozen=True, slots=True)
class NcclRun:
    """One run of a program: out-of-place seconds by bytes, and the GPUs that took part.

    `gpu` is the driver's name of the GPUs; it, `per_node` and `nodes` are None if the text does not say.
    """

    kind: str
    samples: dict[int, list[float]]
    gpu: str | None
    per_node: int | None
    nodes: int | None
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Reading:
    """The state of the run that is being read: its `columns` from the first time on, the number of `words` of a row."""

    line: int
    kind: str | None
    ranks: dict[tuple[int, int], tuple[str, str]] = field(default_factory=dict)
    columns: list[str] | None = None
    words: int = 0
    samples: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    ratios: list[float] = field(default_factory=list)
    ended: bool = False


def parse(text: str, name: str, kind: str | None = None) -> tuple[NcclRun, ...]:
    """Parse all runs in a text; `kind` is used for runs whose program is named neither in the text nor in `name`.

    Raises UsageError with the line if something cannot be read, or if the measured values were wrong.
    """
    runs: list[_Reading] = []
    program: str | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = _LABEL.sub("", raw)
        where = f"{name}, line {number}"
        if _BEGINS.match(line):
            # A program without MPI prints this once per process.
            if not runs or runs[-1].columns is not None:
                runs.append(_Reading(number, program))
        elif match := _RANK.match(line):
            if not runs or runs[-1].columns is not None:
                runs.append(_Reading(number, program))
            _rank(runs[-1], match, where)
        elif _HEADER.match(line):
            if not runs or runs[-1].samples:
                runs.append(_Reading(number, program))
            runs[-1].columns = _columns(line, where)
            runs[-1].kind, program = runs[-1].kind or program, None  # a program's name applies to one run
        elif _ROW.match(line) and runs and runs[-1].columns is not None:
            _row(runs[-1], line, where)
        elif match := _BAD.match(line):
            raise UsageError(f"{where}: {match[1]} values came out wrong: mend the link before you rely on its times")
        elif _END.match(line) and runs:
            runs[-1].ended = True
        elif named := {_KINDS[found] for found in _PROGRAM.findall(line) if found in _KINDS}:
            told = named.pop() if len(named) == 1 else None
            if "concluded" in line and runs:
                runs[-1].kind = told
            else:
                program = told
    measured = [run for run in runs if run.samples]
    if not measured:
        raise UsageError(f"{name} has no table of nccl-tests: give the whole output of, say, all_reduce_perf")
    return tuple(_run(each, name, kind) for each in measured)


def _rank(run: _Reading, match: re.Match[str], where: str) -> None:
    key = (int(match["group"] or 0), int(match["rank"]))
    if key in run.ranks:
        raise UsageError(
            f"{where}: rank {key[1]} is there twice, so each process ran alone: build nccl-tests with MPI=1"
        )
    run.ranks[key] = (match["host"], match["gpu"].strip())


def _columns(line: str, where: str) -> list[str]:
    columns = line.strip().lstrip("#").split()
    if "cputime" in columns:
        raise UsageError(f"{where}: these are times of the CPU (-C): run nccl-tests without")
    if columns.count("time") not in (1, 2) or "algbw" not in columns:
        raise UsageError(f"{where}: no column of times: this form of nccl-tests is not known")
    columns = [column for column in columns if column != "timestamp"]
    return columns[columns.index("time") :]


def _row(run: _Reading, line: str, where: str) -> None:
    """Read the row of one size; its time is the first in the row, out of place."""
    assert run.columns is not None
    words = _TIMESTAMP.sub("", line).split()
    # The columns between the size and the times differ by program and version, and may be blank.
    run.words = run.words or len(words)
    if len(words) != run.words or len(words) < 3 + len(run.columns):
        raise UsageError(f"{where}: {len(words)} columns, not as in the title: give the output as it was printed")
    cells = dict(zip(reversed(run.columns), reversed(words), strict=False))  # the first of each name is kept last
    time_s, algbw, busbw = (_number(cells[column], column, where) for column in ("time", "algbw", "busbw"))
    wrong = next((cells[column] for column in ("#wrong", "wrong") if column in cells), "0")
    if wrong != "N/A" and _number(wrong, "#wrong", where) != 0:
        raise UsageError(f"{where}: {wrong} values came out wrong: mend the link before you rely on its times")
    nbytes = int(words[0][:18])
    if nbytes == 0:
        return
    if time_s <= 0:
        raise UsageError(f"{where}: a time of {time_s:g} us: run more iterations (-n)")
    if algbw >= 1 and not 0.5 < nbytes / time_s * 1e-3 / algbw < 2:
        raise UsageError(f"{where}: {nbytes} bytes in {time_s:g} us are no {algbw:g} GB/s: columns are missing")
    run.samples[nbytes].append(time_s * 1e-6)
    if algbw >= 1:  # both are printed with two decimals, so smaller values are too coarse
        run.ratios.append(busbw / algbw)


def _number(said: str, column: str, where: str) -> float:
    try:
        number = float(said)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise UsageError(f"{where}: {column} is {said[:40]!r}, which is no number: give the output as it was printed")
    return number


def _run(run: _Reading, name: str, kind: str | None) -> NcclRun:
    """Return the finished run; raises UsageError if its data are missing or inconsistent."""
    where = f"{name}, line {run.line}"
    in_name = {each for each, program in PROGRAMS.items() if each in name or program.removesuffix("_perf") in name}
    kind = run.kind or kind or (in_name.pop() if len(in_name) == 1 else None)
    if kind is None:
        raise UsageError(f"{where}: what was measured is not said here: name it by --kind, such as --kind all_reduce")
    if not run.ranks:
        return NcclRun(kind, dict(run.samples), None, None, None, tuple(_cut(run)))
    per_node, nodes = _shape(run, where)
    gpus = sorted({gpu for _, gpu in run.ranks.values()})
    if len(gpus) > 1:
        raise UsageError(f"{where}: ranks on {' and '.join(gpus)}: measure each type of GPU by itself")
    notes = (*_cut(run), *_mismatch(run, kind, per_node * nodes))
    return NcclRun(kind, dict(run.samples), gpus[0], per_node, nodes, notes)


def _shape(run: _Reading, where: str) -> tuple[int, int]:
    """Return the GPUs per node and the nodes of a group; raises UsageError if groups or nodes differ."""
    groups: dict[int, Counter[str]] = defaultdict(Counter)
    for (group, _), (host, _) in run.ranks.items():
        groups[group][host] += 1
    ranks = sorted(rank for _, rank in run.ranks)
    if ranks != list(range(len(ranks))):
        raise UsageError(f"{where}: the list of ranks has gaps: say GPUs a node x nodes by --link, such as --link 8x2")
    shapes = {(count, len(hosts)) for hosts in groups.values() for count in hosts.values()}
    if len(shapes) > 1:
        raise UsageError(f"{where}: nodes with different numbers of GPUs: measure the same number on each node")
    per_node, nodes = shapes.pop()
    if per_node * nodes == 1:
        raise UsageError(f"{where}: only one GPU took part: start two or more (-g, or srun with nccl-tests of MPI=1)")
    return per_node, nodes


def _cut(run: _Reading) -> Iterator[str]:
    """Yield a note if the output does not have the usual last lines."""
    if not run.ended:
        yield "its last lines are missing (Avg bus bandwidth): the program was ended early, or the output was cut off"


def _mismatch(run: _Reading, kind: str, ranks: int) -> Iterator[str]:
    """Yield a note if the bandwidths point to another collective or number of ranks than the text."""
    expected = _OF_OTHERS[kind] * (ranks - 1) / ranks if kind in _OF_OTHERS else 1.0
    if run.ratios and not any(math.isclose(ratio, expected, rel_tol=0.02) for ratio in run.ratios[-3:]):
        yield (
            f"its bus bandwidth is {run.ratios[-1]:.3g} of the algorithm's, where {kind} of {ranks} ranks has "
            f"{expected:.3g}: look whether this is the right file"
        )
