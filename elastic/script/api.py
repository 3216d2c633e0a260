"""The calls of a torchrun script: load, step, save. `elastic` re-exports them."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar

from elastic.base.errors import CheckpointError, UsageError
from elastic.checkpoint import distributed
from elastic.script import ranks, resize_hooks
from elastic.worker import driver_link as _session
from elastic.worker.driver_link import PendingCheckpoint

_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Progress:
    """The steps and samples that this worker has counted."""

    def __init__(self) -> None:
        self.step = 0
        self.samples = 0


_progress = _Progress()


# The world as torchrun describes it; another framework's integration replaces it later.
ranks.use(ranks.World(lambda: _rank_and_size()[0], lambda: _rank_and_size()[1], lambda: _progress.step))


def _timed(load: Callable[_P, _T]) -> Callable[_P, _T]:
    """Wrap `load` to report its time with the first step, as part of the cost of a resize."""

    @functools.wraps(load)
    def timed(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        began_s = time.monotonic()
        loaded = load(*args, **kwargs)
        _session.current().costs["load_s"] = time.monotonic() - began_s
        return loaded

    return timed


@_timed
def load(into: Any | None = None) -> Any | None:
    """Returns the state given to the last `save`, on the CPU, or None if there is none yet; call it once, at the start.

    With `into`, a state of the form that `save` takes, the saved tensors are read into the tensors of `into`, sharded
    as those are, and the returned state holds them; everything else in it (numbers, lists) is as it was saved. Every
    worker calls this: with `into` after `init_process_group`, without it before or after. Raises CheckpointError if a
    checkpoint exists but cannot be read or belongs to another model: training does not silently start from scratch.
    """
    download = _session.current().download_checkpoint()
    if download.versions:
        loaded = distributed.load(download, into)
        if loaded is None:
            return None
        _progress.step, _progress.samples = loaded.step, loaded.samples
        resize_hooks.began_with(loaded.size, _rank_and_size()[1])
        return loaded.state
    if download.file is None:
        return None
    from elastic.checkpoint import snapshot  # imports torch, which a script outside bftd may not need

    envelope = snapshot.read(download.file)
    if "state" not in envelope:
        raise CheckpointError(
            "the checkpoint is a Horovod script's; submit that one, or submit this one without resume="
        )
    _progress.step = int(envelope["step"])
    _progress.samples = int(envelope["samples"])
    _session.current().goes_on(envelope)
    resize_hooks.began_with(envelope.get("size"), _rank_and_size()[1])
    return envelope["state"] if into is None else distributed.copied(envelope["state"], into)


def step(
    samples: int = 0,
    loss: float | None = None,
    save_every: int | None = None,
    *,
    global_samples: int | None = None,
    total_steps: int | None = None,
) -> bool:
    """Counts one training step; returns True if the script should call `save` now.

    Args:
        samples: the number of samples that *this* worker processed in the step; the other workers are assumed to have
            processed as many each.
        loss: the loss to show, if any.
        save_every: save every this many steps, 1 or more. Without it bftd chooses how often, from the cost of a save.
        global_samples: the number of samples that all workers together processed, if their shares differ; `samples` is
            then ignored.
        total_steps: the number of steps of the whole training, over all starts; `bft status` then shows when it is
            expected to end. With `elastic.batches(..., epochs=N)` it is known.

    Call this once a step on every worker. All workers get True at the same step, so the save may use collectives.
    Raises UsageError if `save_every` is less than 1.
    """
    if save_every is not None and save_every < 1:
        raise UsageError(
            f"elastic.step: save_every={save_every} is no number of steps, which is 1 or more; "
            "leave it out to save as often as that is worth what it costs"
        )
    rank, size = _rank_and_size()
    progress = _progress
    progress.step += 1
    # Scripts may pass numpy numbers or tensors; what is sent to the driver is plain int and float.
    progress.samples += int(samples) * size if global_samples is None else int(global_samples)
    session = _session.current()
    nodes = int(os.environ.get("GROUP_WORLD_SIZE", "0"))
    if total_steps is not None:
        session.set_total(total_steps)
    session.step(progress.step, progress.samples, rank, size, None if loss is None else float(loss), nodes=nodes)
    session.step_barrier.by_clock, session.step_barrier.size = save_every is None, size
    request = session.step_barrier.passed(progress.step, time.monotonic())
    if request is not None and request.pause:
        session.pause_requested.set()
    return request is not None or (save_every is not None and progress.step % save_every == 0)


def save(state: Any) -> None:
    """Keeps `state` (anything that torch.save takes) safe from the loss of every node; call it on every worker.

    If the state is replicated, rank 0's is kept; all workers write a sharded state, and any state of a job with
    `state=PATH`. It is copied before this returns, in about the time of one copy in memory, and uploaded in the
    background. A view in a replicated state is kept with the whole tensor that it views, as torch.save does. While bftd
    resizes the trainer this call does not return: the worker is started again on the new nodes, and `load` returns this
    state.
    """
    save_beside(state, None)


def save_beside(state: Any, beside: Beside | None) -> None:
    """Save a state that refers to other content, which rank 0 writes `beside` it."""
    session = _session.current()
    if session.attached:
        _save(state, beside, session)
        session.step_barrier.saved(time.monotonic())


def _save(state: Any, beside: Beside | None, session: _session.DriverLink) -> None:
    rank, size = _rank_and_size()
    if distributed.wanted(state):
        distributed.save(state, _progress.step, _progress.samples, pause=session.pause_requested.is_set())
        return
    if rank != 0:
        return
    from elastic.checkpoint import snapshot

    step, samples = _progress.step, _progress.samples
    envelope = {"step": step, "samples": samples, "size": size, "state": state, **session.about()}
    pending = PendingCheckpoint(step, samples, functools.partial(snapshot.write, envelope))
    if beside is not None:
        pending = replace(pending, first=functools.partial(beside.put, beside.content), kept=beside.kept)
    if session.pause_requested.is_set():
        # Nothing changes the state any more: this worker rests until it is ended.
        session.commit(pending)
        session.rest()
    taken = snapshot.StateCopy(envelope if beside is None else beside.content)
    if beside is None:
        pending = replace(pending, write=taken.write)
    else:  # the envelope holds only names and numbers, which do not change
        pending = replace(pending, first=functools.partial(taken.use, beside.put))
    session.commit(replace(pending, release=taken.release))
    taken.copy()
    session.upload_soon()


@dataclass(frozen=True)
class Beside:
    """Content that a state refers to: `PendingCheckpoint.first` puts it, or a copy, by `put`; `kept` is its `kept`."""

    content: Any
    put: Callable[[Any], dict[str, Any]]
    kept: Callable[[], None]


def run_id() -> str:
    """Returns the run's name for an experiment tracker: the same after resizes, suspensions and `resume=`.

    Call it after `load`. The name is the id of the trainer that the run began as, "" outside bftd.
    """
    return _session.current().run_id


def restarts() -> int:
    """Returns how often the run has resumed from a checkpoint, 0 in its first start; call it after `load`."""
    return _session.current().restarts


def _rank_and_size() -> tuple[int, int]:
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
