"""Saving a distributed checkpoint: the agreement on a step, the write in the background, the report to the driver."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import secrets
import shutil
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save as write
from torch.distributed.tensor import DTensor

from elastic.base.errors import SHARD_IN_OBJECT, CheckpointError
from elastic.checkpoint.distributed import files, rng, tree
from elastic.checkpoint.distributed.ending import before_destroy
from elastic.checkpoint.distributed.groups import Groups, current
from elastic.checkpoint.distributed.local_staging import StagingFolder
from elastic.checkpoint.distributed.shards import RNG, SKELETON, Buffers, CheckpointPlanner, local
from elastic.checkpoint.distributed.writer import Writer
from elastic.worker import driver_link as _session


class Save:
    """This worker's shares of one state on its way to the disk."""

    def __init__(self, groups: Groups, name: str, step: int, samples: int, give_back: Callable[[], None]) -> None:
        self.groups = groups
        self.name = name
        self.step = step
        self.samples = samples
        self.planner: CheckpointPlanner | None = None
        self.size_bytes = 0
        self.error: BaseException | None = None
        self.why = ""
        """The reason why it could not be written, on this worker or another one, after `run`."""

        self._give_back = give_back

    def run(self) -> None:
        """Write the shares, and tell the driver once all workers have written theirs."""
        began_s = time.monotonic()
        session = _session.current()
        folder = Path(os.environ["BFT_STATE_PATH"]) / self.name
        why, sealed = "", []
        try:
            sealed = self._written(folder, files.SaveProgress(_tell_growth))
        except (Exception, CheckpointException) as error:  # CheckpointException is no Exception
            why = _why(error)
        whys = self.groups.gathered_writing(why)
        if not any(whys):
            session.tell(
                {
                    "op": "shards",
                    "name": self.name,
                    "path": str(folder),
                    "step": self.step,
                    "samples": self.samples,
                    "rank": self.groups.rank,
                    "size": self.groups.size,
                    "files": [[file.name, file.size_bytes, file.digest] for file in sealed],
                    "took_s": round(time.monotonic() - began_s, 6),
                }
            )
            return
        self.why = next(filter(None, whys))
        if self.groups.rank == 0:
            # All workers are done with the folder: none writes there any more.
            shutil.rmtree(folder, ignore_errors=True)
        session.tell({"op": "unwritten", "name": self.name, "text": f"the checkpoint of step {self.step}: {self.why}"})

    def _written(self, folder: Path, pace: files.SaveProgress) -> list[files.Sealed]:
        stage = StagingFolder.of(self.name, self.size_bytes, self.groups.rank)
        target = stage.folder if stage is not None else folder
        system = files.SealingFileSystem(pace)
        try:
            planner, error = self.planner, self.error
            if error is None:
                try:
                    files.make_folder(folder)
                    files.make_folder(target)
                except OSError as failed:
                    error = failed
            if error is not None or planner is None:
                planner = _Refusing(error)
            writer = FileSystemWriter(target, sync_files=False)  # our own streams sync, and record what they wrote
            writer.fs = system
            group = self.groups.writing
            write({}, storage_writer=writer, planner=planner, process_group=group, no_dist=group is None)
            sealed = system.sealed()
            if stage is not None:
                for file in sealed:
                    files.copy(target / file.name, folder / file.name, pace)
            files.flush_folder(folder)
            return sealed
        finally:
            if stage is not None:
                stage.remove()

    def release(self) -> None:
        """Give the copies back."""
        self._give_back()
        self.planner = None


class _Refusing(CheckpointPlanner):
    """The planner of a worker that cannot write, which takes part because the others wait for its answer."""

    def __init__(self, error: BaseException | None) -> None:
        super().__init__({}, {})
        self._error = error or RuntimeError("there is nothing to write")

    def create_local_plan(self) -> NoReturn:
        raise self._error


class Saver:
    """The saves of this process."""

    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        self.writer = Writer(groups.meet_writing)
        self._buffers = Buffers()
        self._lock = threading.Lock()
        self._shapes: int | None = None

    def put(self, state: Any, step: int, samples: int, pause: bool) -> bool:
        """Have a copy of `state` written; returns whether any worker is asked to pause."""
        groups = self.groups
        tensors, skeleton = tree.flatten(state)
        shapes, token = tree.fingerprint(tensors), secrets.randbits(64) - (1 << 63)
        rows: list[list[int]] = []

        def agree(begun: int, met: int) -> tuple[int, int]:
            rows[:] = groups.vote([begun, pause, shapes, token, step, samples, met])
            return max(row[0] for row in rows), min(row[6] for row in rows)

        def make() -> Save:
            same = all(row[2] == shapes for row in rows)
            _, _, _, agreed, at, seen, _ = rows[0]
            name = f"step-{at:012d}-{agreed & ((1 << 64) - 1):016x}"
            return self._save(name, at, seen, tensors, skeleton, same, paused=any(row[1] for row in rows))

        self.writer.put(agree, make)
        return any(row[1] for row in rows)

    def _save(
        self,
        name: str,
        step: int,
        samples: int,
        tensors: dict[str, torch.Tensor],
        skeleton: Any,
        same: bool,
        paused: bool,
    ) -> Save:
        groups = self.groups
        copies: dict[str, torch.Tensor] = {}

        def give_back() -> None:
            with self._lock:
                self._buffers.give_back(copies)
            copies.clear()

        save = Save(groups, name, step, samples, give_back)
        try:
            # If workers have different tensors, such as the stages of a pipeline, each offers all it has.
            shares = tree.share(tensors, groups.rank, groups.size) if same else tensors
            objects: dict[str, Any] = {f"{RNG}{groups.rank}": rng.states()}
            if groups.rank == 0:
                about = {"skeleton": skeleton, "step": step, "samples": samples, "size": groups.size}
                objects[SKELETON] = pickled({**about, **_session.current().about()})
            save.planner = CheckpointPlanner(shares, objects)
            parts = {key: local(tensor) for key, tensor in shares.items()}
            save.size_bytes = sum(part.nbytes for part in parts.values())
            with self._lock:
                shapes = tree.fingerprint(tensors)
                if self._shapes != shapes:
                    self._buffers.drop()
                    self._shapes = shapes
                # Training rests during a pause: a state written then needs no copy, but must be in host memory.
                on_host = paused and all(part.device.type == "cpu" for part in parts.values())
                data = parts if on_host else self._buffers.copies(parts)
            if not on_host:
                copies.update(data)
            save.planner.fill({**data, **objects})
        except Exception as error:  # the other workers have agreed on this save: let it fail on all of them
            save.error = error
        return save


_saver: Saver | None = None


def _current() -> Saver:
    global _saver
    groups = current()
    if _saver is None or (groups.main is not None and _saver.groups is not groups):
        _saver = Saver(groups)
        before_destroy(_saver.writer.drain)
        _session.current().on_end.append(drain)
    return _saver


def drain(code: int = 0) -> None:
    """Wait for writes to finish; the checkpoint of a failed script is not waited for."""
    if _saver is not None and code == 0:
        _saver.writer.drain()


def save(state: Any, step: int, samples: int, *, pause: bool) -> None:
    """Save as elastic.checkpoint.distributed.save does."""
    if not os.environ.get("BFT_STATE_PATH"):
        raise CheckpointError(
            "this trainer's driver knows no distributed checkpoints; update bftd where the job was submitted"
        )
    files.new_digest()  # fail now, with one line, and not at every checkpoint
    saver = _current()
    if saver.groups.main is None and saver.groups.rank != 0:
        return  # no group to agree with: all workers have the same state, and rank 0 writes it
    if saver.put(state, step, samples, pause):
        saver.writer.drain()
        _session.current().tell({"op": "paused"})
        _rest()


def _tell_growth(size_bytes: int, flushing: bool) -> None:
    _session.current().tell({"op": "saving", "bytes": size_bytes, "flushing": flushing})


def _rest() -> NoReturn:
    while True:
        time.sleep(3600)


class _Whole(pickle.Pickler):
    """A pickler that refuses a worker's part of a tensor: in an object, rank 0's would be taken for the whole."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, DTensor) or type(obj).__name__ == "ShardedTensor":
            raise CheckpointError(SHARD_IN_OBJECT)
        return NotImplemented


_PICKLE = types.SimpleNamespace(__name__="pickle", Pickler=_Whole)


def pickled(value: Any) -> bytes:
    """Pickle an object that a checkpoint version holds beside the tensors; raises what pickling raises."""
    file = io.BytesIO()
    torch.save(value, file, pickle_module=_PICKLE)
    return file.getvalue()


def _why(error: BaseException) -> str:
    """Return the first cause as text."""
    if isinstance(error, CheckpointException):
        with contextlib.suppress(StopIteration):
            rank, (cause, _) = next(iter(error.failures.items()))
            return f"rank {rank}: {_why(cause)}"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return (str(error) or type(error).__name__).splitlines()[0]
