"""The trainers of a replay: a JSON file with the sizes, the work and the scaling curve of each."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bftd.base.errors import UsageError
from milp import Points, interpolate

_REQUIRED = ("name", "nodes_min", "nodes_max", "work_samples", "curve_nodes", "curve_samples_per_s")
_OPTIONAL = ("submit_s", "up_cost_s", "down_cost_s", "curve_objective")
# "J00012-ResNet18" is of the kind ResNet18, "trial-12" of the kind trial.
_NUMBERED = re.compile(r"[A-Za-z]*\d+[-_.](?P<rest>.*[A-Za-z].*)|(?P<start>.*[A-Za-z])[-_.]?\d+")


class TrainersError(UsageError):
    """The file of trainers cannot be read; the message names the file, the entry and the fault."""


@dataclass(frozen=True)
class SimTrainer:
    """One trainer of the list: it arrives at `submit_s` and is done after `work_samples` samples.

    `curve` holds (nodes, samples/s), `objective` (nodes, worth per second). Both start at (0, 0) with nodes increasing,
    and are linear in between and constant beyond. The costs are R_j^up and R_j^dw in seconds.
    """

    name: str
    nodes_min: int
    nodes_max: int
    work_samples: float
    curve: Points
    objective: Points
    submit_s: float = 0.0
    up_cost_s: float = 0.0
    down_cost_s: float = 0.0

    @property
    def kind(self) -> str:
        """The name without its number."""
        name = self.name.partition("#")[0]
        match = _NUMBERED.fullmatch(name)
        return name if match is None else match["rest"] or match["start"]

    @cached_property
    def rates(self) -> tuple[float, ...]:
        """The samples/s on 0..nodes_max nodes; 0 below nodes_min."""
        able = range(self.nodes_min, self.nodes_max + 1)
        return (*[0.0] * self.nodes_min, *(interpolate(self.curve, count) for count in able))

    def to_json(self) -> dict[str, Any]:
        """Return one entry of the file that `read` reads."""
        return {
            "name": self.name,
            "submit_s": self.submit_s,
            "nodes_min": self.nodes_min,
            "nodes_max": self.nodes_max,
            "work_samples": self.work_samples,
            "up_cost_s": self.up_cost_s,
            "down_cost_s": self.down_cost_s,
            "curve_nodes": [nodes for nodes, _ in self.curve],
            "curve_samples_per_s": [rate for _, rate in self.curve],
            "curve_objective": [worth for _, worth in self.objective],
        }


def digest(trainers: Sequence[SimTrainer]) -> str:
    """Return a hash of the trainers' content: the same list gives the same hash, whatever file it comes from."""
    text = json.dumps([trainer.to_json() for trainer in trainers], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def read(path: str | Path) -> tuple[SimTrainer, ...]:
    """Read a list of trainers from JSON, gzipped if the name ends in .gz; return it in order of submission.

    Raise `TrainersError`.
    """
    where = str(path)
    data = _decoded(Path(path), where)
    if not isinstance(data, list) or not data:
        raise TrainersError(f"{where}: must be a JSON array with at least one trainer")
    trainers = [_trainer(f"{where}, entry {number}", entry) for number, entry in enumerate(data, start=1)]
    first_at: dict[str, int] = {}
    for number, trainer in enumerate(trainers, start=1):
        if trainer.name in first_at:
            raise TrainersError(f"{where}, entry {number}: {trainer.name!r} is entry {first_at[trainer.name]} too")
        first_at[trainer.name] = number
    return tuple(sorted(trainers, key=lambda trainer: trainer.submit_s))


def _decoded(path: Path, where: str) -> Any:
    try:
        raw = path.read_bytes()
        if path.suffix == ".gz":
            raw = gzip.decompress(raw)
        return json.loads(raw)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise TrainersError(f"{where}: is not a whole gzip file: copy it again") from None
    except OSError as error:
        raise TrainersError(f"cannot read {where}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise TrainersError(f"{where}: is not UTF-8 text (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise TrainersError(f"{where}, line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from None
    except RecursionError:
        raise TrainersError(f"{where}: is nested too deeply to be a list of trainers") from None


def _trainer(where: str, entry: object) -> SimTrainer:
    if not isinstance(entry, Mapping):
        raise TrainersError(f"{where}: must be a JSON object")
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise TrainersError(f"{where}: name must be a text that is not empty")
    where = f"{where} ({name})"
    for key in entry:
        if key not in (*_REQUIRED, *_OPTIONAL):
            raise TrainersError(f"{where}: unknown field {key!r}: known are {', '.join((*_REQUIRED, *_OPTIONAL))}")
    for key in _REQUIRED:
        if key not in entry:
            raise TrainersError(f"{where}: lacks the field {key!r}")
    nodes_min, nodes_max = _whole(where, entry, "nodes_min"), _whole(where, entry, "nodes_max")
    if nodes_min > nodes_max:
        raise TrainersError(f"{where}: nodes_min {nodes_min} is above nodes_max {nodes_max}")
    work = _number(f"{where}: work_samples", entry["work_samples"])
    if work <= 0:
        raise TrainersError(f"{where}: work_samples must be above 0, not {work:g}")
    curve = _points(where, entry, "curve_samples_per_s")
    return SimTrainer(
        name=name,
        nodes_min=nodes_min,
        nodes_max=nodes_max,
        work_samples=work,
        curve=curve,
        objective=_points(where, entry, "curve_objective") if "curve_objective" in entry else curve,
        submit_s=_number(f"{where}: submit_s", entry.get("submit_s", 0.0)),
        up_cost_s=_number(f"{where}: up_cost_s", entry.get("up_cost_s", 0.0)),
        down_cost_s=_number(f"{where}: down_cost_s", entry.get("down_cost_s", 0.0)),
    )


def _points(where: str, entry: Mapping[str, Any], field: str) -> Points:
    nodes, values = entry["curve_nodes"], entry[field]
    for name, column in (("curve_nodes", nodes), (field, values)):
        if not isinstance(column, list) or not column:
            raise TrainersError(f"{where}: {name} must be a JSON array that is not empty")
    if len(nodes) != len(values):
        raise TrainersError(f"{where}: curve_nodes has {len(nodes)} entries but {field} has {len(values)}")
    for count in nodes:
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise TrainersError(f"{where}: curve_nodes must hold whole numbers of 0 or more, not {count!r}")
    if any(left >= right for left, right in itertools.pairwise(nodes)):
        raise TrainersError(f"{where}: curve_nodes must increase")
    points = [(count, _number(f"{where}: {field}", value)) for count, value in zip(nodes, values, strict=True)]
    if points[0][0] == 0 and points[0][1] != 0:
        raise TrainersError(f"{where}: {field} must be 0 on 0 nodes, not {points[0][1]:g}")
    if points[-1][0] == 0:
        raise TrainersError(f"{where}: curve_nodes must hold a number above 0")
    return tuple(points) if points[0][0] == 0 else ((0, 0.0), *points)


def _whole(where: str, entry: Mapping[str, Any], field: str) -> int:
    value = entry[field]
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise TrainersError(f"{where}: {field} must be a whole number of 1 or more, not {value!r}")
    return value


def _number(where: str, value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise TrainersError(f"{where} must be a number, not {value!r}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number < 0:
        raise TrainersError(f"{where} must be a number of 0 or more, not {value!r}")
    return number
