"""Distributed checkpoints as workers write them, without torch: files of a few bytes, and what each rank tells."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from elastic.link.wire import Message
from elastic.store.completeness import METADATA


def name_of(step: int, token: int = 0) -> str:
    return f"step-{step:012d}-{token:016x}"


def told(home: Path | str, step: int, rank: int, size: int, token: int = 0, **fields: Any) -> Message:
    """What a rank tells once its files are whole."""
    name = name_of(step, token)
    files = [[f"__{rank}_0.distcp", 8 + rank, digest(rank)], *([[METADATA, 5, digest(-1)]] if rank == 0 else [])]
    told: Message = {
        "op": "shards",
        "name": name,
        "path": f"{home}/{name}",
        "step": step,
        "samples": step * 10,
        "rank": rank,
        "size": size,
        "files": files,
        "took_s": 0.1,
    }
    return {**told, **fields}


def digest(seed: int) -> str:
    return hashlib.sha256(b"%d" % seed).hexdigest()[:32]


def write(message: Message) -> None:
    """The files that a rank tells of."""
    folder = Path(message["path"])
    folder.mkdir(parents=True, exist_ok=True)
    for file, size_bytes, _ in message["files"]:
        (folder / file).write_bytes(b"x" * size_bytes)


def written(home: Path | str, step: int, size: int = 2, token: int = 0) -> list[Message]:
    """What all ranks tell of a version that is on the disk."""
    messages = [told(home, step, rank, size, token) for rank in range(size)]
    for message in messages:
        write(message)
    return messages
