"""Files of jobs that have run, one run per line, as JSON.

Each user has one in their cache, and a centre may have one next to its file of GPUs.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from sizing.base.errors import SizingError, UsageError
from sizing.base.json_fields import Fields, decoded
from sizing.base.parallel import Parallel, Place, RankBatch
from sizing.files.database import cache_folder

NAME = "ran.jsonl"
MOST_BYTES = 16 * 2**20
"""Largest file: some fifty thousand runs, which are read within a second or two."""
LEAST_STEP_S = 1e-6
"""The shortest step: no training step is faster."""
_COUNTS = ("gpus", "nodes", "dp", "tp", "fsdp", "batch", "parameters")
_BYTES = ("peak_bytes", "in_use_bytes", "host_bytes")


@dataclass(frozen=True, slots=True)
class Ran:
    """One job: its step by name and `work`, its GPUs and spread, the samples of one GPU, and its time and memory.

    `step_s` is the time of a step, `peak_bytes` the tensors of the fullest GPU, `in_use_bytes` the most that a process
    had of a GPU, `host_bytes` the most memory of a node; None if not reported. `parameters` are one rank's.
    """

    step: str
    work: str
    gpu_type: str
    gpus: int
    nodes: int
    dp: int
    tp: int
    fsdp: int
    batch: int
    parameters: int
    job: str
    ended_s: float
    step_s: float
    peak_bytes: int | None = None
    in_use_bytes: int | None = None
    host_bytes: int | None = None

    @property
    def point(self) -> RankBatch:
        """The work of one of its ranks."""
        return RankBatch(Parallel(self.dp, self.tp, self.fsdp), self.batch)

    @property
    def place(self) -> Place:
        """The GPUs and the work of each: a run informs only plans with the same place."""
        return self.gpu_type, self.gpus, self.nodes, self.point


def usual_path() -> Path:
    """Return the path of the user's own file."""
    return cache_folder() / NAME


def line_of(ran: Ran) -> str:
    """Return the line of a run; raise UsageError for a run that could not be read again."""
    text = json.dumps({key: value for key, value in asdict(ran).items() if value is not None})
    _ran("the run", text)
    return text


def add(path: Path, ran: Ran) -> None:
    """Append a run to a user's file; raise SizingError if that fails."""
    line = f"{line_of(ran)}\n".encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            size_bytes = os.fstat(file).st_size
            if size_bytes and os.pread(file, 1, size_bytes - 1) != b"\n":
                line = b"\n" + line  # a full disk has cut the last line
            if os.write(file, line) != len(line):
                raise OSError(28, "only a part of the run could be written")
        finally:
            os.close(file)
    except OSError as error:
        raise SizingError(f"{path}: {error.strerror}; nothing was learnt") from None


def read(path: Path, step: str = "") -> tuple[list[Ran], str]:
    """Return the runs in a file, or those of one step by name, and a sentence on the file's faults ("" if none).

    If a job was learnt twice, the later line counts. Invalid lines and unreadable files are skipped.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe would block
            raise OSError(22, "it is no file")
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return [], ""
    except OSError as error:
        return [], f"{path} could not be read ({error.strerror}): its runs do not count"
    if len(content) > MOST_BYTES:
        return [], f"{path} is larger than {MOST_BYTES >> 20} MiB: its runs do not count"
    found: dict[str, Ran] = {}
    damaged = 0
    for line in content.splitlines():
        try:
            if line.strip():
                ran = _ran(str(path), line.decode())
                found[ran.job] = ran
        except (UsageError, UnicodeDecodeError):
            damaged += 1
    said = f"{path}: {damaged} line{'s' if damaged > 1 else ''} cannot be read and do not count" if damaged else ""
    return [each for each in found.values() if step in ("", each.step)], said


def _ran(where: str, line: str) -> Ran:
    given = Fields(where, decoded(line, where), frozenset(field.name for field in fields(Ran)))
    told: dict[str, Any] = {key: given.text(key) for key in ("step", "work", "gpu_type", "job")}
    told |= {key: given.count(key, least=1) for key in _COUNTS}
    told |= {key: given.count(key, least=1) for key in _BYTES if key in given}
    ran = Ran(ended_s=given.number("ended_s"), step_s=given.number("step_s", least=LEAST_STEP_S), **told)
    if ran.point.parallel.gpus != ran.gpus:
        raise given.wrong("gpus", "dp x tp x fsdp")
    return ran
