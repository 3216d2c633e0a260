"""A framework's own checkpoint as the state that bftd keeps: a folder's files, from all ranks, and back.

The framework knows best what its training consists of, so it writes and reads; the files travel, and need no file
system that nodes share. What it would write of tensors is held back: `elastic.save` copies that in memory, and it is
written as a file where it is read. So training waits for one copy, and not for files.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import elastic
from elastic import bypath, session
from elastic.errors import StateError
from elastic.timing import REPORT_S

RNG = "elastic-rng-{rank}.pt"
"""The random number generators of a rank, where the framework leaves them out."""

Held = dict[str, tuple[str, Any, Any]]
"""What a file is to hold, by its relative name: the library that writes it, its content, and safetensors' metadata."""

_WRITERS = (
    ("torch", "save", "torch"),
    ("lightning.fabric.plugins.io.torch_io", "_atomic_save", "torch"),
    ("safetensors.torch", "save_file", "safetensors"),
    ("transformers.modeling_utils", "safe_save_file", "safetensors"),
    ("accelerate.utils.other", "safe_save_file", "safetensors"),
)
"""Functions that write a file, of `(content, path, ...)`, and whose they are: also under the names of who imports them.

Where a release has none of that name, its files are written at once and read again, which takes longer.
"""


class Keeper:
    """Where a framework writes its checkpoints and how they come to bftd: as files, or by name from a shared folder."""

    def __init__(self, shared: str | os.PathLike[str] | None = None) -> None:
        """`shared` is a folder on a file system that all nodes have; None: the files travel."""
        self._shared = Path(shared).resolve() if shared else None
        self._kept: list[Path] = []

    def open(self, saved: dict[str, Any]) -> Path:
        """The folder of a checkpoint that bftd kept, until `close`; raises StateError where it is not there."""
        if "folder" in saved:
            self._kept = [existing(saved["folder"])]
            return self._kept[0]
        return unpacked(saved)

    def close(self, folder: Path) -> None:
        """Lets go of what `open` gave."""
        if folder not in self._kept:
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def saving(self, step: int, **more: Any) -> Iterator[Path]:
        """A folder to write a checkpoint into, on every rank; when it is written, bftd keeps it, and `more` beside it.

        Where a resize waits for it, the end of this does not return (see elastic.save).
        """
        folder = scratch() if self._shared is None else self._shared / f"step-{step}"
        folder.mkdir(parents=True, exist_ok=True)
        if self._shared is None:
            with telling(folder), held_back(folder) as held:
                yield folder
                files = gathered(folder)
            shutil.rmtree(folder, ignore_errors=True)
            elastic.save({**more, "files": files, "held": held})
            return
        with telling(folder):
            yield folder
        barrier()  # it is whole when everybody has written his part
        kept = [one for one in self._kept if one != folder]
        # While its disk is full the driver goes by the name of an older one.
        gone = kept[:-1] if session.current().arrived else []
        self._kept = [*kept[len(gone) :], folder]
        for old in gone if _rank() == 0 else ():
            shutil.rmtree(old, ignore_errors=True)
        elastic.save({**more, "folder": str(folder)})


def scratch() -> Path:
    """A new folder of this worker's own, on its node."""
    return Path(tempfile.mkdtemp(prefix="bft-checkpoint-"))


@contextlib.contextmanager
def telling(folder: Path) -> Iterator[None]:
    """Tells the driver once a second how much of a checkpoint is written: a sign of life of a save that takes long."""
    over = threading.Event()

    def tell() -> None:
        while not over.wait(REPORT_S):
            session.current().tell({"op": "saving", "bytes": _size_bytes(folder)})

    teller = threading.Thread(target=tell, name="bft-saving", daemon=True)
    teller.start()
    try:
        yield
    finally:
        over.set()
        teller.join()


@contextlib.contextmanager
def held_back(folder: Path) -> Iterator[Held]:
    """Keeps what rank 0 is to write below `folder` from being written, and collects it.

    Other ranks write, as theirs is small; so does rank 0 what goes by path (`state=`, sharded tensors), and what is
    written in an unusual way. What is collected is as it was only until the script goes on: save it before.
    """
    held: Held = {}
    root = folder.resolve()

    def holding(kind: str, write: Callable[..., Any]) -> Callable[..., Any]:
        def hold(content: Any, path: Any, *rest: Any, **named: Any) -> Any:
            name = _below(root, path)
            unusual = kind == "torch" and (rest or named)
            if name is None or unusual or bypath.wanted(content):
                return write(content, path, *rest, **named)
            held[name] = (kind, content, rest[0] if rest else named.get("metadata"))
            return None

        return hold

    with contextlib.ExitStack() as restored:
        for module_name, name, kind in _WRITERS if _rank() == 0 else ():
            module = sys.modules.get(module_name)
            write = getattr(module, name, None)
            if write is not None:
                setattr(module, name, holding(kind, write))
                restored.callback(setattr, module, name, write)
        yield held


def _below(root: Path, path: Any) -> str | None:
    """The name of a file relative to `root`, None where it lies elsewhere or has no name."""
    if not isinstance(path, (str, os.PathLike)):
        return None
    file = Path(path).resolve()
    return str(file.relative_to(root)) if file.is_relative_to(root) else None


def written(folder: Path, held: Mapping[str, tuple[str, Any, Any]]) -> None:
    """Writes into `folder` what `held_back` has collected."""
    from elastic import snapshot

    for name, (kind, content, metadata) in held.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if kind == "torch":
            with file.open("wb") as opened:
                snapshot.write(content, opened)
        else:
            import safetensors.torch

            # It takes no tensors that lie in the same memory.
            apart = {key: tensor.detach().contiguous().clone() for key, tensor in content.items()}
            safetensors.torch.save_file(apart, str(file), metadata=metadata)


def _size_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # frameworks rename what they have written
            total += path.stat().st_size
    return total


def existing(folder: str) -> Path:
    """A folder that a saved state names; raises StateError where it is not there."""
    if not os.path.isdir(folder):
        raise StateError(
            f"the saved state is in {folder}, which is not there: it was removed, or this node does not see it; "
            "put it back, or submit the job once more, without resume=, to start anew"
        )
    return Path(folder)


def gathered(folder: Path) -> dict[str, Any]:
    """The files below `folder` by their relative names, on rank 0 with those that the others wrote into theirs.

    Every rank calls this at the same step. What rank 0 has all to itself, model and optimizer as a rule, is not sent.
    A file is a tensor of bytes, mapped and not read: bytes would be copied several times on their way, and at once.
    """
    import torch
    import torch.distributed as dist

    def mapped(path: Path) -> Any:
        size_bytes = path.stat().st_size
        if not size_bytes:
            return torch.empty(0, dtype=torch.uint8, device="cpu")  # a script may have set another default
        return torch.from_file(str(path), size=size_bytes, dtype=torch.uint8)

    files = {str(path.relative_to(folder)): mapped(path) for path in sorted(folder.rglob("*")) if path.is_file()}
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return files
    rank = dist.get_rank()
    theirs: list[Any] | None = [None] * dist.get_world_size() if rank == 0 else None
    dist.gather_object({} if rank == 0 else files, theirs)
    for more in theirs or ():
        files.update(more)
    return files


def unpacked(saved: Mapping[str, Any]) -> Path:
    """A new folder with the files of a saved state, as `gathered` and `held_back` have them."""
    folder = scratch()
    written(folder, saved.get("held", {}))  # an older bftd held nothing back
    for name, data in saved["files"].items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data.numpy())
    return folder


def keep_rng(folder: Path) -> None:
    """Adds this rank's random number generators to a checkpoint."""
    import numpy
    import torch

    states = {"python": random.getstate(), "numpy": numpy.random.get_state(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    buffer = io.BytesIO()
    torch.save(states, buffer)
    (folder / RNG.format(rank=_rank())).write_bytes(buffer.getvalue())


def restore_rng(folder: Path) -> None:
    """Sets them again; a rank that was not there when they were saved keeps those of its start."""
    import numpy
    import torch

    file = folder / RNG.format(rank=_rank())
    if not file.exists():
        return
    # Of bftd's own state: whoever could alter it could alter the script.
    states = torch.load(file, weights_only=False)
    random.setstate(states["python"])
    numpy.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def barrier() -> None:
    """Returns when all ranks are here."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.barrier()


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))
