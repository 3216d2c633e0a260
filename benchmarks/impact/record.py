"""The record of one run: a file of JSON lines, raw enough that every figure can be computed anew.

benchmarks/results/impact/ keeps runs whose figures docs/evidence/impact.md cites, packed by gzip and without logs.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Kind = Literal["A", "B"]

Row = dict[str, Any]

NO_TRAINING = "none"

FORMAT = 2
"""Files without it are of the time before bftd earmarked nodes, when the recipes' names meant other settings."""

SCHEDULERS = ("main", "backfill")
"""Of Slurm: the one starts jobs in their order, the other those further back that fit in front of what is planned."""


@dataclass(frozen=True, slots=True)
class JobRow:
    """A regular job; times in seconds after the stream's start, None for what did not happen.

    `start_s` is the job's own first line. `planned_s` is the start that Slurm's plan had for it when the plan was last
    seen at least ten seconds ahead, `last_plan_s` when it was seen last. `preempt_s` is when Slurm first preempted a
    pilot for it, `preempted_by` which of SCHEDULERS did, `freed` the nodes of those pilots. `failed_s` is when a
    backfill cycle first found that it can start now and could not start it, because its nodes were not free yet.
    `began_s` and `ended_s` are whole seconds, by Slurm, on `nodes`; `started_by` is one of SCHEDULERS, which allocated
    the nodes at `allocated_s`, and `run_s` how long it runs. `lost` tells in one line how it lost the slot that was
    made for it, "" where it did not.
    """

    number: int
    kind: str
    submit_s: float
    start_s: float | None
    planned_s: float | None
    last_plan_s: float | None
    preempt_s: float | None
    preemptions: int
    began_s: float | None
    ended_s: float | None
    nodes: tuple[str, ...]
    freed: tuple[str, ...] = ()
    depends_on: int | None = None
    started_by: str | None = None
    preempted_by: str | None = None
    failed_s: float | None = None
    run_s: float | None = None
    lost: str = ""
    allocated_s: float | None = None


@dataclass(frozen=True, slots=True)
class PilotRow:
    """A pilot on `node`, from and to Slurm's whole seconds after the stream's start."""

    node: str
    began_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class EarmarkRow:
    """Nodes that bftd kept free for the regular job `job`, None for one that is not of the stream.

    From and to seconds after the stream's start; `until_s` is None where it was kept to the run's end. `end` is the
    daemon's word for how it ended: "started" where the job started. `idle_node_s` are the node-seconds in which no
    pilot was on them, None where that is not known.
    """

    job: int | None
    nodes: tuple[str, ...]
    since_s: float
    until_s: float | None
    end: str
    leaving: tuple[str, ...] = ()
    idle_node_s: float | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the stream; `training` is NO_TRAINING in one without bftd.

    `rpcs` are the requests to the controller during the stream, by type. `cycles_s` are the lengths of the cycles of
    Slurm's backfill scheduler. `load_most` is the machine's most load over a minute.
    """

    recipe: str
    release: str
    kind: Kind
    pair: int
    seed: int
    count: int
    nodes: int
    training: str
    length_s: float
    controller_cpu_s: float
    rpcs: dict[str, int]
    plan_reads: int
    jobs: tuple[JobRow, ...] = ()
    pilots: tuple[PilotRow, ...] = ()
    note: str = ""
    stretch: int = 1
    earmarks: tuple[EarmarkRow, ...] = ()
    cycles_s: tuple[float, ...] = ()
    load_most: float = 0.0
    format: int = FORMAT

    def waited_until_s(self, row: JobRow) -> float:
        """The start of one of the run's jobs; one that never started has waited to the run's end."""
        return self.length_s if row.start_s is None else row.start_s


def file_name(
    recipe: str, release: str, training: str, nodes: int, count: int, seed: int, stretch: int, pair: int, kind: Kind
) -> str:
    """The name of a run's file: all that must be the same for a run to stand for another."""
    return f"{recipe}-{release}-{training}-{nodes}x{count}-s{seed}-x{stretch}-p{pair:02d}{kind}.jsonl"


def save(run: Run, path: Path) -> None:
    """Write a run: its own line, then a line a job, a pilot and an earmark. The file appears when it is whole."""
    head = asdict(run)
    rows: list[Row] = [{"row": "run", **{name: value for name, value in head.items() if name not in _ROWS}}]
    for name, (kind, _) in _ROWS.items():
        rows += [{"row": kind, **row} for row in head[name]]
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    unfinished.write_text("".join(json.dumps(row) + "\n" for row in rows))
    unfinished.rename(path)


_ROWS: dict[str, tuple[str, type[Any]]] = {
    "jobs": ("job", JobRow),
    "pilots": ("pilot", PilotRow),
    "earmarks": ("earmark", EarmarkRow),
}


_OLD_ROWS = {"room": "earmark"}


def load(path: Path) -> Run:
    """Read what `save` wrote, also when gzip has packed it; raises ValueError for another file."""
    try:
        kinds: dict[str, list[Row]] = {"run": [], **{kind: [] for kind, _ in _ROWS.values()}}
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        for line in content.decode().splitlines():
            row = json.loads(line)
            kinds[_OLD_ROWS.get(row["row"], row["row"])].append(
                {key: _frozen(value) for key, value in row.items() if key != "row"}
            )
        (head,) = kinds["run"]
        if head.get("format") != FORMAT:
            raise _Older
        tables: dict[str, Any] = {
            name: tuple(made(**row) for row in kinds[kind]) for name, (kind, made) in _ROWS.items()
        }
        return Run(**head, **tables)
    except _Older:
        raise ValueError(
            f"{path} is of an older version of this benchmark, whose recipes were others: "
            f"move the runs out of {path.parent}, or give another --folder"
        ) from None
    except (EOFError, KeyError, TypeError, ValueError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path} is no run of this benchmark ({error}): remove it") from error


class _Older(Exception):
    """A file whose recipe's name means something else."""


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def load_all(folder: Path) -> list[Run]:
    """All runs in a folder, in the order of their names."""
    return [load(path) for path in sorted((*folder.glob("*.jsonl"), *folder.glob("*.jsonl.gz")))]


def only(runs: Iterable[Run], **fields: Any) -> list[Run]:
    """Those runs whose fields have these values."""
    return [run for run in runs if all(getattr(run, name) == value for name, value in fields.items())]
