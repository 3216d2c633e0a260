"""A cache of profiles and a communication table in the folders of a Terminal's user, all made up."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from sizing.cells.comm.protocol import Link
from sizing.cells.comm.table import table
from sizing.cells.shards import StageShard
from sizing.child import graphing
from sizing.model.graph import Graph, Operator
from sizing.profiles import comm_tables
from sizing.profiles.profile import Setting
from sizing.profiles.store import Store, by_files
from tests.sizing.cells.made import profile_of

KIND = "a100-sxm-80gb"
GRAPH = Graph("made up", 8, tuple(Operator(f"op{at}", "", 10**9, 2**20, 10**6) for at in range(4)), "export")


def profiled(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    seconds: dict[int, float],
    kind: str = KIND,
    links: bool = True,
    precision: str = "fp32",
) -> None:
    """Let train.py's model have profiles of its one stage: seconds of a pass by the batch of one GPU."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    monkeypatch.setattr(graphing, "graph", lambda step, batch, **_: GRAPH)
    digest = hashlib.sha256((folder / "train.py").read_bytes()).hexdigest()
    model = by_files(f"{folder}/train.py:make_model", [("train.py", digest)])
    results = [
        profile_of(StageShard(0, 3, batch, 1), took_s, device=kind, peak_bytes=2**30, spread=0.02)
        for batch, took_s in seconds.items()
    ]
    Store().put(model, Setting("adam", precision), results)
    if links:
        sizes = {4**at * 1024: [1e-4 * (at + 1)] for at in range(9)}
        comm_tables.save(
            comm_tables.own_path(),
            [table("all_reduce", Link(kind, count, 1), sizes, "nccl-tests", "2026-11-01") for count in (2, 4)],
        )
