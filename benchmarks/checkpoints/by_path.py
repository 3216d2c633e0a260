"""Distributed checkpoints saved by some ranks and loaded by others, beside plain calls of torch.distributed.checkpoint.

Every rank is a process with torch and a gloo group; there is no driver: what workers would tell it is put together here
as it does. Saves are timed from the call until all is written and flushed, the second one of each process; loads until
the tensors are filled. The two ways take turns in being the first.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

_LIMIT_S = 900.0


def available() -> bool:
    """Whether this version can save distributed checkpoints."""
    return importlib.util.find_spec("elastic.checkpoint.distributed") is not None


def measure(
    size_bytes: int, savers: int, loaders: Sequence[int], repeats: int, log: Callable[[str], None]
) -> dict[str, Any]:
    """Medians of all repetitions; in each of them plain calls and bftd's take turns."""
    rows: list[dict[str, Any]] = []
    for number in range(repeats):
        with tempfile.TemporaryDirectory(prefix="bft-checkpoints-") as name:
            row: dict[str, Any] = {}
            ways = ("plain", "distributed") if number % 2 else ("distributed", "plain")
            saved = {how: _ranks(savers, how, "save", name, size_bytes) for how in ways}
            for how, said in saved.items():
                row[f"saved by {savers}: {how} s"] = max(one["took_s"] for one in said)
            manifest = together([line for one in saved["distributed"] for line in one["told"]])
            (Path(name) / "version.json").write_text(json.dumps(manifest))
            equal = True
            for ranks in loaders:
                for how in saved:
                    said = _ranks(ranks, how, "load", name, size_bytes)
                    row[f"loaded by {ranks}: {how} s"] = max(one["took_s"] for one in said)
                    equal &= {one["digest"] for one in said} == {saved[how][0]["digest"]}
            row["bit-equal"] = equal
        rows.append(row)
        log(f"distributed, {number + 1} of {repeats}: {json.dumps(row)}")
    return summary(rows, [f"saved by {savers}", *(f"loaded by {ranks}" for ranks in loaders)])


def summary(rows: Sequence[dict[str, Any]], parts: Sequence[str]) -> dict[str, Any]:
    """The medians, and of each part how many times as long as plain calls it takes, by pairs."""
    found: dict[str, Any] = {"bit-equal": all(row["bit-equal"] for row in rows), "samples": list(rows)}
    for part in parts:
        plain, ours = ([row[f"{part}: {how} s"] for row in rows] for how in ("plain", "distributed"))
        found[f"{part}: plain s"] = statistics.median(plain)
        found[f"{part}: distributed s"] = statistics.median(ours)
        found[f"{part}: distributed / plain"] = statistics.median(o / p for o, p in zip(ours, plain, strict=True))
    return found


def together(told: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The checkpoint version that a driver makes of what all ranks have told."""
    refused = [line["text"] for line in told if line["op"] == "unwritten"]
    shards = [line for line in told if line["op"] == "shards"]
    if refused or not shards or len({line["rank"] for line in shards}) != shards[0]["size"]:
        raise SystemExit(
            f"checkpoints.by_path: not all ranks have written their shards: {refused or 'some said nothing'}"
        )
    first = shards[0]
    files = [file for line in sorted(shards, key=lambda line: int(line["rank"])) for file in line["files"]]
    return {key: first[key] for key in ("name", "path", "step", "samples", "size")} | {"files": files}


def _ranks(size: int, how: str, what: str, folder: str, size_bytes: int) -> list[dict[str, Any]]:
    """What all ranks of one group say."""
    shutil.rmtree(Path(folder) / "store", ignore_errors=True)
    (Path(folder) / "store").mkdir()
    children = []
    for rank in range(size):
        environ = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "OMP_NUM_THREADS": "1",
            "BFT_STATE_PATH": str(Path(folder) / "versions"),
            "BFT_STATE_BY_PATH": "1",
            "BFT_STATE_STAGE": "",
        }
        words = [sys.executable, "-m", "benchmarks.checkpoints.by_path", how, what, folder, str(size_bytes)]
        children.append(subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, text=True))
    try:
        said = [child.communicate(timeout=_LIMIT_S)[0] for child in children]
    finally:
        for child in children:
            with contextlib.suppress(OSError):
                child.kill()
            child.wait()
    if any(child.returncode for child in children):
        raise SystemExit(f"checkpoints.by_path: {size} ranks could not {what} ({how})")
    return [json.loads(text.splitlines()[-1]) for text in said]


# -- one rank ---


def _main(how: str, what: str, folder: str, size_bytes: int) -> None:
    import torch
    import torch.distributed as dist

    torch.manual_seed(1)
    rank, size = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    dist.init_process_group("gloo", init_method=f"file://{folder}/store/{what}", rank=rank, world_size=size)
    state = _state(size_bytes, zero=what == "load")
    importlib.import_module("torch.distributed.checkpoint")
    if how == "distributed":  # imports are of a process's start, and not of a save
        for name in ("saving", "loading"):
            importlib.import_module(f"elastic.checkpoint.distributed.{name}")
    dist.barrier()
    told: list[dict[str, Any]] = []
    if what == "save":  # once before: fresh memory is touched for the first time, by copies and by files
        _once(how, what, state, folder, told)
        dist.barrier()
        if rank == 0:
            shutil.rmtree(f"{folder}/plain" if how == "plain" else told[-1]["path"])
        told.clear()
        dist.barrier()
    began_s = time.monotonic()
    _once(how, what, state, folder, told)
    took_s = time.monotonic() - began_s
    dist.barrier()
    print(json.dumps({"took_s": took_s, "digest": _digest(state), "told": told}), flush=True)
    os._exit(0)  # nothing of what else ends a process is measured


def _once(how: str, what: str, state: dict[str, Any], folder: str, told: list[dict[str, Any]]) -> None:
    if how == "plain":
        _plain(what, state, f"{folder}/plain")
    elif what == "save":
        _save_distributed(state, told)
    else:
        _load_distributed(state, Path(folder) / "version.json")


def _state(size_bytes: int, zero: bool) -> dict[str, Any]:
    """A model and Adam's moments as DDP has them, the same on every rank."""
    import torch

    make = torch.zeros if zero else torch.rand
    layers = max(1, size_bytes // 3 // (4 << 20))
    per_layer = max(1, size_bytes // 3 // layers // 4)
    return {
        part: {f"layer{number}": make(per_layer) for number in range(layers)}
        for part in ("model", "exp_avg", "exp_avg_sq")
    }


def _plain(what: str, state: dict[str, Any], path: str) -> None:
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.checkpoint.state_dict_saver import save

    if what == "save":
        save(state, checkpoint_id=path)
    else:
        load(state, checkpoint_id=path)


def _save_distributed(state: dict[str, Any], told: list[dict[str, Any]]) -> None:
    from elastic.worker import driver_link

    distributed, saving = (importlib.import_module(f"elastic.checkpoint.distributed{name}") for name in ("", ".saving"))
    os.makedirs(os.environ["BFT_STATE_PATH"], mode=0o700, exist_ok=True)

    def tell(message: dict[str, Any]) -> bool:
        told.append(message)
        return True

    driver_link.current().tell = tell  # type: ignore[method-assign]
    distributed.save(state, 1, 1, pause=False)
    saving.drain()


def _load_distributed(state: dict[str, Any], manifest: Path) -> None:
    from elastic.worker.driver_link import Download

    distributed = importlib.import_module("elastic.checkpoint.distributed")
    if distributed.load(Download(versions=(json.loads(manifest.read_text()),)), state) is None:
        raise SystemExit("checkpoints.by_path: there is no version to load")


def _digest(state: dict[str, Any]) -> str:
    content = hashlib.sha256()
    for part in state.values():
        for tensor in part.values():
            content.update(tensor.numpy())
    return content.hexdigest()


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
