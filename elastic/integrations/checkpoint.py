"""A framework's own checkpoint as the one that bftd keeps: files of a folder, collected from all ranks and restored.

The framework knows best what its training consists of, so it writes and reads the checkpoint; the files are uploaded,
so no shared file system is needed. Files of tensors are not written at once: `elastic.save` copies their content in
memory, and they are written where the checkpoint is read. So training waits for one copy, and not for files.
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
from elastic.base.errors import CheckpointError, UsageError
from elastic.base.timing import LAST_CHECKPOINT_S, REPORT_S, UPLOAD_S
from elastic.checkpoint import distributed
from elastic.script import api
from elastic.worker import driver_link

RNG = "elastic-rng-{rank}.pt"
"""The file of a rank's random number generators, for frameworks that leave them out."""

_PART = ".part"
"""The suffix of a checkpoint's name until it is complete."""

_swept: set[Path] = set()
"""Folders in which this process has removed the half-written files of an earlier life."""

_SIGN_S = UPLOAD_S / 4
"""The interval of signs of life from a write beside training: a driver that asks waits UPLOAD_S for the first."""

Held = dict[str, tuple[str, Any, Any]]
"""Contents of files by relative name: the library that writes the file, its content, and safetensors' metadata."""

_WRITERS = (
    ("torch", "save", "torch"),
    ("lightning.fabric.plugins.io.torch_io", "_atomic_save", "torch"),
    ("safetensors.torch", "save_file", "safetensors"),
    ("transformers.modeling_utils", "safe_save_file", "safetensors"),
    ("accelerate.utils.other", "safe_save_file", "safetensors"),
)
"""Functions that write a file, of `(content, path, ...)`, and their library, also as other modules imported them.

If a release lacks such a name, its files are written at once and read again, which takes longer.
"""


class Keeper:
    """The folder that a framework writes its checkpoints to, handed to bftd as files or as the name of a shared folder.

    A checkpoint in a shared folder is written beside training, as a state is uploaded: under another name first, then
    flushed and renamed, and only then reported to the driver. The two newest are kept.
    """

    def __init__(self, shared: str | os.PathLike[str] | None = None) -> None:
        """`shared` as for `stay`; with None the files are uploaded."""
        self._shared: Path | None = None
        self._whole: list[Path] = []
        self._parts: list[Path] = []
        self._begun = self._unpacked = Path()
        if shared:
            self.stay(shared)

    def stay(self, shared: str | os.PathLike[str]) -> None:
        """Keep checkpoints below a folder that all nodes see, in a subfolder of this trainer.

        Call this before the training.
        """
        # Scripts of an array, or two jobs of one script, name the same folder: each would remove the others' files.
        self._shared = Path(shared).resolve() / os.environ.get("BFT_TRAINER", "")
        # Once in a process: a second training in it may begin while the first one's checkpoint is still being written.
        if driver_link.current().attached and _rank() == 0 and self._shared not in _swept:
            _swept.add(self._shared)
            for left in self._shared.glob(f"step-*{_PART}"):
                shutil.rmtree(left, ignore_errors=True)

    def open(self, saved: dict[str, Any]) -> Path:
        """Return the folder of a checkpoint that bftd kept, until `close`; raises CheckpointError if it is gone."""
        if "folder" not in saved:
            self._unpacked = unpack(saved, scratch())
            return self._unpacked
        folder = existing(saved["folder"])
        older = [one for one in folder.parent.glob("step-*") if 0 <= _step(one) < _step(folder)]
        self._whole = [*sorted(older, key=_step), folder]
        driver_link.current().costs["load_bytes"] = _size_bytes(folder)
        return folder

    def close(self, folder: Path) -> None:
        """Release the folder that `open` returned."""
        if folder == self._unpacked:
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.contextmanager
    def saving(self, step: int, sharded: bool, **more: Any) -> Iterator[Path]:
        """Yield a folder to write a checkpoint into, on every rank; bftd then keeps it, with `more` beside it.

        If a resize waits for it, this context does not end (see elastic.save).
        """
        folder = self.begin(step, sharded)
        with self.collecting() as held:
            yield folder
        self.keep(step, folder, held, **more)

    def begin(self, step: int, sharded: bool) -> Path:
        """Return a folder for this rank's files; a `sharded` model is written by all ranks to where it stays."""
        self._begun = scratch() if self._shared is None or not sharded else self._shared / f"step-{step}{_PART}"
        self._begun.mkdir(parents=True, exist_ok=True)
        if self._in_place:
            self._parts.append(self._begun)
        return self._begun

    @contextlib.contextmanager
    def collecting(self, hold: bool = True) -> Iterator[Held]:
        """Yield what is held back while the framework writes into `begin`'s folder; nothing if files stay there."""
        with telling(self._begun), contextlib.ExitStack() as holding:
            yield holding.enter_context(held_back(self._begun)) if hold and not self._in_place else {}

    def copy(self, folder: Path, to: Path) -> None:
        """Copy the files in `folder` to a place of the script's own."""
        if self._in_place:
            barrier()
        if not self._in_place or _rank() == 0:
            shutil.copytree(folder, to, copy_function=_linked, dirs_exist_ok=True)

    def keep(self, step: int, folder: Path, held: Held, **more: Any) -> None:
        """Have bftd keep the files in `folder`, which is the folder of `begin` or lies in it; see `saving`."""
        content: dict[str, Any] = {}
        if self._in_place:
            if distributed.wanted({}):
                raise UsageError("a sharded model's checkpoints stay in the shared folder: leave out state=")
            barrier()
            if os.environ.get("LOCAL_RANK") == "0" and _rank() != 0:
                _flush(folder)  # rank 0 cannot flush files that another node has written
            barrier()  # complete once every rank has written its part
        else:
            content = {"files": gathered(folder), "held": held}
            shutil.rmtree(self._begun, ignore_errors=True)
        if self._shared is None or distributed.wanted({}):  # a job's distributed checkpoints have this too
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
        """Complete, flush and rename a checkpoint to `place`, once; without `content` its files are in `folder`."""
        if done:
            return done
        part, began_s = place.with_suffix(_PART) if content else folder, time.monotonic()
        try:
            if content:
                with telling(part, _SIGN_S):
                    unpack(content, part)
            with telling(part, _SIGN_S, flushing=True):
                _flush(part)
            if place.exists():  # of an earlier life or training
                place.rename(old := place.with_suffix(f".old{_PART}"))
                shutil.rmtree(old, ignore_errors=True)
            part.rename(place)
        finally:
            if content:  # else it stays for another try
                shutil.rmtree(part, ignore_errors=True)
        for above in (place.parent, place.parent.parent):  # the parents may be new as well
            _flush(above, below=False)
        self._whole = [*(one for one in self._whole if one != place), place]
        while not content and begun in self._parts:  # and earlier ones, which this one overtook
            shutil.rmtree(self._parts.pop(0), ignore_errors=True)
        done |= {"beside_bytes": _size_bytes(place), "beside_s": time.monotonic() - began_s}
        return done

    def _rotate(self) -> None:
        """Remove all but the two newest checkpoints, now that the driver relies on the newest."""
        gone, self._whole = self._whole[:-2], self._whole[-2:]
        for old in gone:
            if old.parent == self._shared:
                shutil.rmtree(old, ignore_errors=True)


def _step(folder: Path) -> int:
    """Return the step of a complete checkpoint in a shared folder, -1 for any other name."""
    digits = folder.name.removeprefix("step-")
    return int(digits) if digits.isdigit() else -1


def scratch() -> Path:
    """Make a new folder for this worker alone, on its node."""
    return Path(tempfile.mkdtemp(prefix="bft-checkpoint-"))


@contextlib.contextmanager
def telling(folder: Path, every_s: float = REPORT_S, flushing: bool = False) -> Iterator[None]:
    """Report repeatedly how much of a checkpoint is written: a long save's sign of life to the driver.

    With `flushing` the size need not grow, since all of it waits for the disk.
    """
    over, until_s = threading.Event(), time.monotonic() + LAST_CHECKPOINT_S

    def report() -> None:
        while not over.wait(every_s):
            waits = flushing and time.monotonic() < until_s
            driver_link.current().tell(
                {"op": "saving", "bytes": 0 if waits else _size_bytes(folder), "flushing": waits}
            )

    thread = threading.Thread(target=report, name="bft-saving", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextlib.contextmanager
def held_back(folder: Path) -> Iterator[Held]:
    """Keep rank 0's files below `folder` from being written, and collect their content.

    Other ranks write their files, which are small; rank 0 writes sharded tensors and files written in an unusual way.
    The collected content is valid only until the script goes on: save it before.
    """
    held: Held = {}
    root = folder.resolve()

    def holding(kind: str, write: Callable[..., Any]) -> Callable[..., Any]:
        def hold(content: Any, path: Any, *rest: Any, **named: Any) -> Any:
            name = _below(root, path)
            unusual = kind == "torch" and (rest or named)
            if name is None or unusual or distributed.sharded(content):
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
    """Return the name of a file relative to `root`, None if it lies elsewhere or has no name."""
    if not isinstance(path, (str, os.PathLike)):
        return None
    file = Path(path).resolve()
    return str(file.relative_to(root)) if file.is_relative_to(root) else None


def written(folder: Path, held: Mapping[str, tuple[str, Any, Any]]) -> None:
    """Write the content that `held_back` has collected into `folder`."""
    from elastic.checkpoint import snapshot

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
                apart[key] = whole.clone() if place in places else whole  # tensors must not share memory there
                places.add(place)
            safetensors.torch.save_file(apart, str(file), metadata=metadata)


def _linked(source: str, to: str) -> None:
    """Link a file or, if that is impossible, copy it."""
    try:
        os.link(source, to)
    except OSError:
        shutil.copy2(source, to)


def _flush(folder: Path, below: bool = True) -> None:
    """Flush a folder's names to the disk, and everything `below` it."""
    for path in [*(folder.rglob("*") if below else ()), folder]:
        if path.is_symlink():
            continue
        # Some file systems cannot flush folders, and some folders may not be read.
        with contextlib.suppress(*[OSError] if path.is_dir() else []):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _size_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # frameworks rename files once written
            total += path.stat().st_size
    return total


def existing(folder: str) -> Path:
    """Return the folder that a checkpoint names; raises CheckpointError if it does not exist."""
    if not os.path.isdir(folder):
        raise CheckpointError(
            f"the checkpoint is in {folder}, which is not there: it was removed, or this node does not see it; "
            "put it back, or submit the job once more, without resume=, to start anew"
        )
    return Path(folder)


def gathered(folder: Path) -> dict[str, Any]:
    """Return the files below `folder` by relative name; rank 0 also gets those that the others wrote into theirs.

    Every rank calls this at the same step. Rank 0's own files, usually model and optimizer, are not sent. A file is a
    tensor of bytes, mapped and not read: bytes objects would be copied several times on their way, and at once.
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
    """Write the files of a checkpoint, as `gathered` and `held_back` have them, into a folder; returns the folder."""
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
    """Restore this rank's generators; a rank that did not exist at the save keeps those of its start."""
    import numpy
    import torch

    file = folder / RNG.format(rank=_rank())
    if not file.exists():
        return
    # The file is bftd's own checkpoint: anyone who could alter it could alter the script.
    states = torch.load(file, weights_only=False)
    random.setstate(states["python"])
    numpy.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def barrier() -> None:
    """Wait until all ranks are here."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.barrier()


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))
