"""Profiles shards of a model on the device at hand, in a process under the user's Python."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from sizing.base.errors import Untraceable, UsageError
from sizing.base.estimate import Estimate
from sizing.cells.shards import Exchange, ShardProfile, StageShard
from sizing.child import launch
from sizing.inventory import gpus
from sizing.model.graph import Graph
from sizing.model.transformer import ModelConfig
from sizing.model.wide_resnet import WideResNet

_ENTRY = "sizing.tracer.runs.profiles"
ROUNDS = 10
PRECISIONS = ("fp32", "tf32", "bf16", "bf16-pure", "fp16-amp")
TIMEOUT_S = 900.0
_MOST_TP = 4096
_ASK_TORCH = """
import importlib.metadata as m, sys
try:
    print(m.version("torch"))
except m.PackageNotFoundError:
    sys.exit(3)
if sys.argv[1] != "cpu":
    import torch
    print(torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu")
"""
_TORCH_WAITS_S = 60.0

NO_PLAN = "no tensor parallelism"
"""The first words of the refusal of a model without tensor parallelism, which holds for every tensor-parallel size."""

Device = Literal["auto", "cpu", "cuda"]
Source = str | ModelConfig | WideResNet
"""The model to profile: "PATH.py:FUNCTION", or a model by its sizes."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of a profile: all that it depends on beside the model, the device and torch's version."""

    optimizer: str = "adam"
    precision: str = "fp32"
    threads: int = 1
    rounds: int = ROUNDS


@dataclass(frozen=True, slots=True)
class Unfit:
    """A shard that does not fit in the memory of `device`; `why` is the allocator's message."""

    shard: StageShard
    device: str
    why: str
    torch: str = ""


Result = ShardProfile | Unfit


@dataclass(frozen=True, slots=True)
class Profiled:
    """The outcome of profiling: a result for each shard, in order; `files` are the user's, by path and SHA-256."""

    results: tuple[Result, ...]
    files: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def profile(
    source: Source,
    shards: Sequence[StageShard],
    *,
    graph: Graph | None = None,
    device: Device = "auto",
    rounds: int = ROUNDS,
    optimizer: str = "adam",
    precision: str = "fp32",
    threads: int = 1,
    python: str = "",
    timeout_s: float = TIMEOUT_S,
) -> tuple[ShardProfile, ...]:
    """Profile shards as `profiled` does; return only the profiles of shards that fit in the device's memory."""
    setting = Setting(optimizer, precision, threads, rounds)
    found = profiled(source, shards, setting, graph=graph, device=device, python=python, timeout_s=timeout_s)
    return tuple(each for each in found.results if isinstance(each, ShardProfile))


def profiled(
    source: Source,
    shards: Sequence[StageShard],
    setting: Setting,
    *,
    graph: Graph | None = None,
    device: Device = "auto",
    python: str = "",
    timeout_s: float = TIMEOUT_S,
    done: Callable[[Result, Sequence[tuple[str, str]]], None] | None = None,
) -> Profiled:
    """Profile shards one after another; call `done` after each, with the model's files as known so far.

    The shards' indices are those of the operators of `graph`; a model by its sizes needs none. There is one process per
    tensor-parallel size, and the timeout is for each. Raises Untraceable if the model cannot be run in parts,
    UsageError if the request is wrong.
    """
    # limit_bytes: the limit of the machine's memory, for the child to keep if the device turns out to be the CPU
    request = {"device": device, "limit_bytes": _limit_bytes(), **asdict(setting), **_of(source, graph)}
    for shard in shards:
        if shard.batch < 1 or not 1 <= shard.tp <= _MOST_TP or not 0 <= shard.first <= shard.last:
            raise UsageError(f"{shard}: no shard of a model")
    results: dict[StageShard, Result] = {}
    files: set[tuple[str, str]] = set()
    notes: dict[str, None] = {}
    for tp in sorted({each.tp for each in shards}):
        mine = sorted({each for each in shards if each.tp == tp}, key=lambda each: (each.batch, each.first, each.last))
        heard: list[dict[str, Any]] = []
        began = time.monotonic()

        def hear(line: bytes, heard: list[dict[str, Any]] = heard) -> None:
            nonlocal began
            found = json.loads(line)
            found["profile_s"], began = time.monotonic() - began, time.monotonic()
            heard.append(found)
            files.update((str(path), str(digest)) for path, digest in found["files"])
            if done is not None:
                done(_result(found), sorted(files))

        rows = [[each.first, each.last, each.batch, each.tp] for each in mine]
        env = {"OMP_NUM_THREADS": str(setting.threads), "HF_HUB_OFFLINE": "1", **(launch.ranks(tp) if tp > 1 else {})}
        if device == "cpu":
            env["CUDA_VISIBLE_DEVICES"] = ""
        said = launch.run(
            _ENTRY,
            {**request, "tp": tp, "shards": rows},
            python=python,
            timeout_s=timeout_s,
            env=env,
            what=str(request.get("path", "the model")),
            heard=hear,
        )
        answer = json.loads(said)
        if "refused" in answer:
            raise (UsageError if answer.get("usage") else Untraceable)(answer["refused"])
        results.update((each.shard, each) for each in (_result(found) for found in heard))
        notes.update(dict.fromkeys(found["note"] for found in heard if found.get("note")))
    return Profiled(tuple(results[each] for each in shards), tuple(sorted(files)), tuple(notes))


def _limit_bytes() -> int | None:
    """Return the bytes that a process may take before the system or Slurm kills it; None if unknown."""
    found: list[int] = []
    with suppress(OSError, ValueError, IndexError):
        rows = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        found += [int(row[1]) * 1024 for row in rows if row[0] == "MemAvailable:"]
    with suppress(KeyError, ValueError):
        found.append(int(os.environ["SLURM_MEM_PER_NODE"]) * 2**20)
    return min((each for each in found if each > 0), default=None)


def device_name(said: str) -> str:
    """Return a device's name in profiles: "cpu", or the catalogue's type for the driver's name.

    A GPU that the catalogue does not know keeps the driver's name.
    """
    if said == "cpu":
        return said
    known = gpus.recognise(said)
    return known.type.name if known is not None else said


def _of(source: Source, graph: Graph | None) -> dict[str, Any]:
    if isinstance(source, (ModelConfig, WideResNet)):
        return {"sizes": sizes_of(source)}
    path, name = launch.parts(source)
    found: dict[str, Any] = {"path": str(path), "function": name}
    if graph is not None:
        found["graph"] = {
            "origin": graph.origin,
            "batch": graph.batch,
            "operators": [[each.name, each.module] for each in graph.operators],
        }
    return found


def sizes_of(source: ModelConfig | WideResNet) -> dict[str, Any]:
    """Return the sizes that define a model, without its parallelism, its batch and the fields of a Setting."""
    said: Mapping[str, Any] = asdict(source)
    left_out = ("parallel", "batch", "precision", "optimizer", "zero", "accumulation", "name")
    kind = "transformer" if isinstance(source, ModelConfig) else "wide_resnet"
    return {"kind": kind, **{key: value for key, value in said.items() if key not in left_out}}


def _result(found: Mapping[str, Any]) -> Result:
    shard = StageShard(*found["shard"])
    device, torch = device_name(str(found["device"])), str(found["torch"])
    if "unfit" in found:
        return Unfit(shard, device, str(found["unfit"]), torch)
    return ShardProfile(
        shard,
        device,
        _measured(found["compute_s"]),
        _measured(found["update_s"]),
        found["parameters"],
        found["weight_bytes"],
        found["state_bytes"],
        found["activation_bytes"],
        found["peak_bytes"],
        tuple(Exchange(*each) for each in found["exchanges"]),
        found["rounds"],
        found["profile_s"],
        torch,
    )


def _measured(times: Sequence[float]) -> Estimate:
    value, low, high = times
    return Estimate(value, low, high, "measured")


def torch_of(python: str = "", device: str = "auto") -> tuple[str, str]:
    """Return the version of torch, and the driver's name of the device that "auto", "cpu" or "cuda" means.

    They are those of the Python that profiles are made under. Raises UsageError if no Python has torch.
    """
    for candidate in launch.pythons(python):
        try:
            said = subprocess.run(
                [candidate, "-c", _ASK_TORCH, device],
                capture_output=True,
                text=True,
                timeout=_TORCH_WAITS_S,
                stdin=subprocess.DEVNULL,
                env=os.environ,
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if said.returncode == 0:
            version, *name = said.stdout.split("\n")
            return version.strip(), (name[0].strip() if name and name[0] else "") or "cpu"
    raise UsageError("no Python with torch was found: name one with --python /path/to/python")
