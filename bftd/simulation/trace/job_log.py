"""Logs of a machine's regular jobs on disk: bftd's own compressed CSV file, or the Standard Workload Format.

The first line of an own file is a comment with what the rows do not hold, the second names the columns, and each other
line is a job. Reading and writing keep no text in memory but that of the jobs themselves.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import fields
from itertools import chain, islice
from operator import le
from pathlib import Path

from bftd.base.files import decoded, replacing
from bftd.protocol.fields import Fields
from bftd.simulation.trace import swf
from bftd.simulation.trace.errors import TraceError, unpacking
from bftd.simulation.trace.job_model import LATEST_S, MOST_JOBS, SETTINGS, JobLog, LoggedJob, order
from bftd.simulation.trace.table import seconds

__all__ = ["JobLog", "LoggedJob", "is_named", "load", "path_of", "write"]

_MARK = "#bft-jobs "
_VERSION = 1
_COLUMNS = tuple(field.name for field in fields(LoggedJob))
_MOST_NODES = 10_000_000
_LINE_BYTES = 1_000_000
_ID_LETTERS = 64
_GZIP = b"\x1f\x8b"


def path_of(trace: Path) -> Path:
    """Return the path of the log beside a trace: T.jobs.csv.gz for T.csv.gz and for T.csv."""
    return trace.with_name(trace.name.removesuffix(".gz").removesuffix(".csv") + ".jobs.csv.gz")


def is_named(path: Path) -> bool:
    """Whether a file is a log by its name: T.jobs.csv, or T.swf, with .gz or without."""
    return path.name.removesuffix(".gz").endswith((".jobs.csv", ".swf"))


def write(log: JobLog, path: str | Path) -> None:
    """Write a log atomically, the same one always as the same bytes; raise TraceError if that fails."""
    told: dict[str, object] = {"version": _VERSION, "jobs": len(log.jobs)}
    told |= {name: getattr(log, name) for name in ("begin_s", "end_s", "size", "notes")}
    told["slurm"] = dict(sorted(log.slurm.items()))
    try:
        with (
            replacing(Path(path)) as part,
            part.open("wb") as raw,
            gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0, compresslevel=6) as packed,
            io.TextIOWrapper(packed, encoding="utf-8", newline="") as text,
        ):
            text.write(f"{_MARK}{json.dumps(told)}\n")
            rows = csv.writer(text, lineterminator="\n")
            rows.writerow(_COLUMNS)
            rows.writerows(map(_row, log.jobs))
    except OSError as error:
        raise TraceError(f"cannot write {path}: {error.strerror}") from None


def load(path: str | Path) -> JobLog:
    """Read a log that `write` or the Standard Workload Format made, compressed or not, whatever its name.

    Raise TraceError, with file and line, for whatever cannot be true.
    """
    lines = _lines(Path(path))
    for number, line in lines:
        if line.startswith(_MARK):
            where = f"{path}, line {number}"
            head = decoded(line.removeprefix(_MARK).encode(), where, TraceError)
            return _own(Fields(head, where, TraceError), lines, str(path))
        if swf.is_row(line):
            return swf.read(chain([(number, line)], lines), str(path))
        if line.strip():
            break
    raise TraceError(
        f"{path} is no log of jobs: give one that bft trace from-sacct wrote, or one in the Standard Workload Format"
    )


def _row(job: LoggedJob) -> tuple[str | int, ...]:
    times = (job.submit_s, job.eligible_s, job.start_s, job.end_s, job.limit_s)
    texts = (job.partition, job.user, job.account, job.qos, job.state, job.node_names, job.required)
    return (job.id, *("" if time_s is None else seconds(time_s) for time_s in times), job.nodes, *texts)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file, compressed or not, with their numbers."""
    try:
        raw = path.open("rb")
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from None
    with raw:
        is_packed = raw.peek(len(_GZIP)).startswith(_GZIP)
        number = 0
        with unpacking(path) if is_packed else nullcontext(), gzip.GzipFile(fileobj=raw) if is_packed else raw as text:
            while line := text.readline(_LINE_BYTES):
                number += 1
                if len(line) == _LINE_BYTES:
                    raise TraceError(f"{path}, line {number}: longer than any line of a log of jobs")
                yield number, line.decode("utf-8", "replace")


def _own(head: Fields, lines: Iterator[tuple[int, str]], path: str) -> JobLog:
    """Read what follows the first line of an own file."""
    if (version := head.whole("version")) != _VERSION:
        raise TraceError(f"{path} is a log of version {version}, and this bft reads {_VERSION}: write it anew")
    count = head.whole("jobs")
    if count > MOST_JOBS:
        raise TraceError(f"{path} has {count:,} jobs, and {MOST_JOBS:,} are the most: make it of a shorter period")
    _, line = next(lines, (0, ""))
    if tuple(line.strip().split(",")) != _COLUMNS:
        raise TraceError(f"{path}, line 2: the columns must be {','.join(_COLUMNS)}")
    jobs = tuple(_jobs(lines, path, count))
    if len(jobs) != count:
        raise TraceError(f"{path} has {len(jobs):,} jobs, its first line tells of {count:,}: is it cut short?")
    begin_s, end_s = (head.number(name, maximum=LATEST_S) for name in ("begin_s", "end_s"))
    notes = tuple(note for note in head.items("notes") if isinstance(note, str))
    told = head.nested("slurm")
    slurm = {name: told.text(name, "") for name in SETTINGS if told.has(name)} if told is not None else {}
    return JobLog(jobs, begin_s, end_s, head.whole("size", None), notes, slurm)


def _jobs(lines: Iterator[tuple[int, str]], where: str, count: int) -> Iterator[LoggedJob]:
    """Yield the jobs of the rows, of which one more than `count` is enough; texts that come often are kept once."""
    rows = csv.reader((line for _, line in lines), strict=True)
    texts: dict[str, str] = {}
    limits: dict[str, float | None] = {"": None}
    before = (-math.inf, 0, "", 0.0)
    try:
        for row in islice(rows, count + 1):
            job = _job(row, texts, limits)
            if job is None or (key := order(job)) < before:
                what = "cannot be" if job is None else "comes before the one above: sort by submit_s and id"
                raise TraceError(f"{where}, line {rows.line_num + 2}: the job {','.join(row)[:60]!r} {what}")
            before = key
            yield job
    except csv.Error as error:
        raise TraceError(f"{where}, line {rows.line_num + 2}: no row of a log of jobs: {error}") from None


def _job(row: list[str], texts: dict[str, str], limits: dict[str, float | None]) -> LoggedJob | None:
    """Return the job of a row, or None if the row cannot be one."""
    if len(row) != len(_COLUMNS) or not all(map(str.isprintable, row)) or not 0 < len(row[0]) <= _ID_LETTERS:
        return None
    try:
        submit_s = float(row[1])
        # most jobs are eligible at once
        eligible_s = submit_s if row[2] == row[1] else _time_s(row[2])
        start_s, end_s = _time_s(row[3]), _time_s(row[4])
        limit_s = limits[row[5]] if row[5] in limits else limits.setdefault(row[5], float(row[5]))
        nodes = int(row[6])
    except ValueError:
        return None
    times_s = [at_s for at_s in (0.0, submit_s, eligible_s, start_s, end_s, LATEST_S) if at_s is not None]
    if not all(map(le, times_s, times_s[1:])) or not (limit_s is None or 0 <= limit_s < math.inf):
        return None
    if not 0 < nodes <= _MOST_NODES:
        return None
    partition, user, account, qos, state, node_names, required = (texts.setdefault(text, text) for text in row[7:])
    return LoggedJob(
        row[0], submit_s, eligible_s, start_s, end_s, limit_s, nodes,
        partition, user, account, qos, state, node_names, required,
    )  # fmt: skip


def _time_s(text: str) -> float | None:
    return float(text) if text else None
