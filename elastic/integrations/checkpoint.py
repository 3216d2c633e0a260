"""A framework's own checkpoint as the state that bftd keeps: a folder's files, from all ranks, and back.

The framework knows best what its training consists of, so it writes and reads; the files travel, and need no file
system that nodes share. What it would write of tensors is held back: `elastic.save` copies that in memory, and it is
written as a file where it is read. So training waits for one copy, and not for files.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import elastic
from elastic import api, bypath, session
from elastic.errors import StateError, UsageError
from elastic.timing import LAST_STATE_S, REPORT_S, SHIP_S

RNG = "elastic-rng-{rank}.pt"
"""The random number generators of a rank, where the framework leaves them out."""

_PART = ".part"
"""What the name of a checkpoint ends in until it is whole."""

_swept: set[Path] = set()
"""Folders in which this process has removed what an earlier life left half-written."""

_SIGN_S = SHIP_S / 4
"""So often who writes beside training gives a sign of life: the driver, when it asks, waits so long for the first."""

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
    """Where a framework writes its checkpoints and how they come to bftd: as files, or by name from a shared folder.

    What goes to a shared folder is written beside training, as a state travels: under another name first, then flushed
    and renamed, and only then the driver hears of it. The two newest are kept.
    """

    def __init__(self, shared: str | os.PathLike[str] | None = None) -> None:
        """`shared` as for `stay`; None: the files travel."""
        self._shared: Path | None = None
        self._whole: list[Path] = []
        self._parts: list[Path] = []
        self._begun = self._unpacked = Path()
        if shared:
            self.stay(shared)

    def stay(self, shared: str | os.PathLike[str]) -> None:
        """Has checkpoints stay below a folder that all nodes see, in one of this trainer's own.

        Called before the training.
        """
        # Scripts of an array, or two jobs of one script, name the same folder: each would remove the others' files.
        self._shared = Path(shared).resolve() / os.environ.get("BFT_TRAINER", "")
        # Once in a process: whoever trains a second time may still write what the first one saved.
        if session.current().attached and _rank() == 0 and self._shared not in _swept:
            _swept.add(self._shared)
            for left in self._shared.glob(f"step-*{_PART}"):
                shutil.rmtree(left, ignore_errors=True)

    def open(self, saved: dict[str, Any]) -> Path:
        """The folder of a checkpoint that bftd kept, until `close`; raises StateError where it is not there."""
        if "folder" not in saved:
            self._unpacked = unpack(saved, scratch())
            return self._unpacked
        folder = existing(saved["folder"])
        older = [one for one in folder.parent.glob("step-*") if 0 <= _step(one) < _step(folder)]
        self._whole = [*sorted(older, key=_step), folder]
        session.current().costs["load_bytes"] = _size_bytes(folder)
        return folder

    def close(self, folder: Path) -> None:
        """Lets go of what `open` gave."""
        if folder == self._unpacked:
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def saving(self, step: int, sharded: bool, **more: Any) -> Iterator[Path]:
        """A folder to write a checkpoint into, on every rank; when it is written, bftd keeps it, and `more` beside it.

        Where a resize waits for it, the end of this does not return (see elastic.save).
        """
        folder = self.begin(step, sharded)
        with self.collecting() as held:
            yield folder
        self.keep(step, folder, held, **more)

    def begin(self, step: int, sharded: bool) -> Path:
        """A folder for the files of this rank; of a `sharded` model all write where it stays, as one could not."""
        self._begun = scratch() if self._shared is None or not sharded else self._shared / f"step-{step}{_PART}"
        self._begun.mkdir(parents=True, exist_ok=True)
        if self._in_place:
            self._parts.append(self._begun)
        return self._begun

    @contextlib.contextmanager
    def collecting(self, hold: bool = True) -> Iterator[Held]:
        """While the framework writes into what `begin` gave: what is held back of it, nothing where it stays there."""
        with telling(self._begun), contextlib.ExitStack() as holding:
            yield holding.enter_context(held_back(self._begun)) if hold and not self._in_place else {}

    def copy(self, folder: Path, to: Path) -> None:
        """Has what was written into `folder` at a place of the script's own, too."""
        if self._in_place:
            barrier()
        if not self._in_place or _rank() == 0:
            shutil.copytree(folder, to, copy_function=_linked, dirs_exist_ok=True)

    def keep(self, step: int, folder: Path, held: Held, **more: Any) -> None:
        """Has bftd keep what was written into `folder`, which is or lies in what `begin` gave; see `saving`."""
        content: dict[str, Any] = {}
        if self._in_place:
            if bypath.wanted({}):
                raise UsageError("a sharded model's checkpoints stay in the shared folder: leave out state=")
            barrier()
            if os.environ.get("LOCAL_RANK") == "0" and _rank() != 0:
                _flush(folder)  # rank 0 cannot flush what another node has written
            barrier()  # it is whole when everybody has written his part
        else:
            content = {"files": gathered(folder), "held": held}
            shutil.rmtree(self._begun, ignore_errors=True)
        if self._shared is None or bypath.wanted({}):  # where a state goes by path, this goes there
            elastic.save({**more, **content})
            return
        place = self._shared / f"step-{step}"
        put = functools.partial(self._put, place, folder, self._begun, {})
        api.save_beside({**more, "folder": str(place)}, api.Beside(content, put, self._rotate))

    @property
    def _in_place(self) -> bool:
        return self._shared is not None and self._begun.is_relative_to(self._shared)

    def _put(
        self, place: Path, folder: Path, begun: Path, done: dict[str, Any], content: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Has a checkpoint whole, on the disk and in its place, once; without `content` it lies in `folder` before."""
        if done:
            return done
        part, began_s = place.with_suffix(_PART) if content else folder, time.monotonic()
        try:
            if content:
                with telling(part, _SIGN_S):
                    unpack(content, part)
            with telling(part, _SIGN_S, flushing=True):
                _flush(part)
            if place.exists():  # of an earlier life, or of a training before this one
                place.rename(old := place.with_suffix(f".old{_PART}"))
                shutil.rmtree(old, ignore_errors=True)
            part.rename(place)
        finally:
            if content:  # else it stays for another try
                shutil.rmtree(part, ignore_errors=True)
        for above in (place.parent, place.parent.parent):  # which may be new as well
            _flush(above, below=False)
        self._whole = [*(one for one in self._whole if one != place), place]
        while not content and begun in self._parts:  # and those before, which this one overtook
            shutil.rmtree(self._parts.pop(0), ignore_errors=True)
        done |= {"beside_bytes": _size_bytes(place), "beside_s": time.monotonic() - began_s}
        return done

    def _rotate(self) -> None:
        """Removes all but the two newest, now that the driver goes by the newest."""
        gone, self._whole = self._whole[:-2], self._whole[-2:]
        for old in gone:
            if old.parent == self._shared:
                shutil.rmtree(old, ignore_errors=True)


def _step(folder: Path) -> int:
    """The step of a whole checkpoint in a shared folder, -1 where it is none."""
    digits = folder.name.removeprefix("step-")
    return int(digits) if digits.isdigit() else -1


def scratch() -> Path:
    """A new folder of this worker's own, on its node."""
    return Path(tempfile.mkdtemp(prefix="bft-checkpoint-"))


@contextlib.contextmanager
def telling(folder: Path, every_s: float = REPORT_S, flushing: bool = False) -> Iterator[None]:
    """Tells the driver again and again how much of a checkpoint is written: a sign of life of a save that takes long.

    With `flushing` it need not grow, since all of it waits for the disk.
    """
    over, until_s = threading.Event(), time.monotonic() + LAST_STATE_S

    def tell() -> None:
        while not over.wait(every_s):
            waits = flushing and time.monotonic() < until_s
            session.current().tell({"op": "saving", "bytes": 0 if waits else _size_bytes(folder), "flushing": waits})

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

    Other ranks write, as theirs is small; so does rank 0 sharded tensors, and what is written in an unusual way. What
    is collected is as it was only until the script goes on: save it before.
    """
    held: Held = {}
    root = folder.resolve()

    def holding(kind: str, write: Callable[..., Any]) -> Callable[..., Any]:
        def hold(content: Any, path: Any, *rest: Any, **named: Any) -> Any:
            name = _below(root, path)
            unusual = kind == "torch" and (rest or named)
            if name is None or unusual or bypath.sharded(content):
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

            apart: dict[str, Any] = {}
            places = set()
            for key, tensor in content.items():
                whole = tensor.detach().contiguous()
                place = whole.untyped_storage().data_ptr()
                apart[key] = whole.clone() if place in places else whole  # it takes none that lie in the same memory
                places.add(place)
            safetensors.torch.save_file(apart, str(file), metadata=metadata)


def _linked(source: str, to: str) -> None:
    """Links a file or, where that cannot be, copies it."""
    try:
        os.link(source, to)
    except OSError:
        shutil.copy2(source, to)


def _flush(folder: Path, below: bool = True) -> None:
    """Has a folder's names on the disk, and all `below` it."""
    for path in [*(folder.rglob("*") if below else ()), folder]:
        if path.is_symlink():
            continue
        # There are file systems that cannot do that with folders, and folders that one may not read.
        with contextlib.suppress(*[OSError] if path.is_dir() else []):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


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


def unpack(saved: Mapping[str, Any], folder: Path) -> Path:
    """Writes the files of a saved state into a folder, as `gathered` and `held_back` have them, and returns that."""
    folder.mkdir(parents=True, exist_ok=True)
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
