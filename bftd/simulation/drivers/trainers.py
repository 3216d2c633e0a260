"""The trainers of a replay: a JSON file with the sizes, the work and the scaling curve of each."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import math
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from bftd.base.errors import UsageError
from bftd.base.files import contents, decoded
from bftd.protocol.fields import Fields
from milp import Points, interpolate

_CURVES = ("curve_nodes", "curve_samples_per_s", "curve_objective")
_KNOWN = ("name", "nodes_min", "nodes_max", "work_samples", *_CURVES, "submit_s", "up_cost_s", "down_cost_s")
# "J00012-ResNet18" is of the kind ResNet18, "trial-12" of the kind trial.
_NUMBERED = re.compile(r"[A-Za-z]*\d+[-_.](?P<rest>.*[A-Za-z].*)|(?P<start>.*[A-Za-z])[-_.]?\d+")


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
    """Read a list of trainers from JSON, gzipped if the name ends in .gz, into the order of submission.

    Raise UsageError with the file, the entry and the fault.
    """
    where = str(path)
    data = _decoded(Path(path))
    if not isinstance(data, list) or not data:
        raise UsageError(f"{where}: must be a JSON array with at least one trainer")
    trainers = [_trainer(f"{where}, entry {number}", entry) for number, entry in enumerate(data, start=1)]
    first_at: dict[str, int] = {}
    for number, trainer in enumerate(trainers, start=1):
        if trainer.name in first_at:
            raise UsageError(f"{where}, entry {number}: {trainer.name!r} is entry {first_at[trainer.name]} too")
        first_at[trainer.name] = number
    return tuple(sorted(trainers, key=lambda trainer: trainer.submit_s))


def _decoded(path: Path) -> Any:
    raw = contents(path)
    try:
        return decoded(gzip.decompress(raw) if path.suffix == ".gz" else raw, str(path))
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise UsageError(f"{path}: is not a whole gzip file: copy it again") from None


def _trainer(where: str, entry: object) -> SimTrainer:
    told = Fields(entry, where, UsageError)
    if not (name := told.text("name", "")):
        raise told.wrong("name", "a text that is not empty")
    where = f"{where} ({name})"
    told = Fields(entry, where, UsageError)
    told.only(_KNOWN)
    nodes_min, nodes_max = told.whole("nodes_min", minimum=1), told.whole("nodes_max", minimum=1)
    if nodes_min > nodes_max:
        raise told.fault(f"nodes_min {nodes_min} is above nodes_max {nodes_max}")
    work = told.number("work_samples", maximum=math.inf)
    if work <= 0:
        raise told.wrong("work_samples", "above 0")
    curve = _points(told, where, "curve_samples_per_s")
    return SimTrainer(
        name=name,
        nodes_min=nodes_min,
        nodes_max=nodes_max,
        work_samples=work,
        curve=curve,
        objective=_points(told, where, "curve_objective") if told.has("curve_objective") else curve,
        submit_s=told.number("submit_s", 0.0),
        up_cost_s=told.number("up_cost_s", 0.0),
        down_cost_s=told.number("down_cost_s", 0.0),
    )


def _points(told: Fields, where: str, field: str) -> Points:
    nodes, values = told.items("curve_nodes"), told.items(field)
    if len(nodes) != len(values):
        raise told.fault(f"curve_nodes has {len(nodes)} entries but {field} has {len(values)}")
    points = []
    for pair in zip(nodes, values, strict=True):
        point = Fields(dict(zip(("curve_nodes", field), pair, strict=True)), where, UsageError)
        points.append((point.whole("curve_nodes"), point.number(field, maximum=math.inf)))
    if any(left >= right for (left, _), (right, _) in itertools.pairwise(points)):
        raise told.fault("curve_nodes must increase")
    if not points or points[-1][0] == 0:
        raise told.fault("curve_nodes must hold a number above 0")
    if points[0][0] > 0:
        return ((0, 0.0), *points)
    if points[0][1] != 0:
        raise told.fault(f"{field} must be 0 on 0 nodes, not {points[0][1]:g}")
    return tuple(points)
