"""The calls of a torchrun script: load, step, save. `elastic` re-exports them."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ParamSpec, TypeVar

from elastic import bypath, resizing, world
from elastic import session as _session
from elastic.errors import StateError, UsageError
from elastic.session import Saved

_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Progress:
    """Where this worker is: counted steps and samples, and what the last save covers."""

    def __init__(self) -> None:
        self.step = 0
        self.samples = 0


_progress = _Progress()


# As torchrun tells it; what another framework's part of this package says comes after.
world.use(world.World(lambda: _rank_and_size()[0], lambda: _rank_and_size()[1], lambda: _progress.step))


def _timed(load: Callable[_P, _T]) -> Callable[_P, _T]:
    """Has the time that loading takes told with the first step: it is a part of what a resize costs."""

    @functools.wraps(load)
    def timed(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        began_s = time.monotonic()
        loaded = load(*args, **kwargs)
        _session.current().costs["load_s"] = time.monotonic() - began_s
        return loaded

    return timed


@_timed
def load(into: Any | None = None) -> Any | None:
    """Returns what the last `save` was given, on the CPU, or None when there is none yet; call it once, at the start.

    With `into`, a state as `save` is given it, the saved tensors are read into those of `into`, sharded as these are,
    and the state that is returned has them; all else in it (numbers, lists) is as it was saved. Every worker loads,
    with `into` after `init_process_group`, without it before or after, as it suits the script. Raises StateError when
    there is a saved state that cannot be read, or that is of another model: that is no first start.
    """
    fetched = _session.current().fetch_state()
    if fetched.generations:
        loaded = bypath.load(fetched, into)
        if loaded is None:
            return None
        _progress.step, _progress.samples = loaded.step, loaded.samples
        resizing.began_with(loaded.size, _rank_and_size()[1])
        return loaded.state
    if fetched.file is None:
        return None
    from elastic import snapshot  # which imports torch: a script outside bftd may have no need of it

    envelope = snapshot.read(fetched.file)
    if "state" not in envelope:
        raise StateError("the saved state is a Horovod script's; submit that one, or submit this one without resume=")
    _progress.step = int(envelope["step"])
    _progress.samples = int(envelope["samples"])
    _session.current().goes_on(envelope)
    resizing.began_with(envelope.get("size"), _rank_and_size()[1])
    return envelope["state"] if into is None else bypath.copied(envelope["state"], into)


def step(
    samples: int = 0,
    loss: float | None = None,
    save_every: int | None = None,
    *,
    global_samples: int | None = None,
    total_steps: int | None = None,
) -> bool:
    """Counts one training step; returns True when the script should call `save` now.

    Args:
        samples: how many samples *this* worker processed in the step; every worker is taken to have done as many.
        loss: the loss to show, if any.
        save_every: ask for a save every so many steps, 1 or more; without it bftd asks, as often as what a save costs
            is worth it.
        global_samples: how many samples all workers together processed, where their shares differ; then `samples`
            is not looked at.
        total_steps: how many steps the whole training has, all starts together: `bft status` then tells when it is
            expected to end. With `elastic.batches(..., epochs=N)` it is known.

    All workers are asked at the same step, so the save may use collectives; call this once a step on every one of them.
    Raises UsageError.
    """
    if save_every is not None and save_every < 1:
        raise UsageError(
            f"elastic.step: save_every={save_every} is no number of steps, which is 1 or more; "
            "leave it out to save as often as that is worth what it costs"
        )
    rank, size = _rank_and_size()
    progress = _progress
    progress.step += 1
    # Scripts pass what they have: numbers of numpy's and tensors are taken, but are not what travels.
    progress.samples += int(samples) * size if global_samples is None else int(global_samples)
    session = _session.current()
    nodes = int(os.environ.get("GROUP_WORLD_SIZE", "0"))
    if total_steps is not None:
        session.told_total(total_steps)
    session.step(progress.step, progress.samples, rank, size, None if loss is None else float(loss), nodes=nodes)
    session.fence.by_clock = save_every is None
    gate = session.fence.passed(progress.step, time.monotonic())
    if gate is not None and gate.pause:
        session.pause_requested.set()
    return gate is not None or (save_every is not None and progress.step % save_every == 0)


def save(state: Any) -> None:
    """Keeps `state` (anything that torch.save takes) so that it outlives every node; call it on every worker.

    A replicated state is rank 0's; a sharded one, and any where `state=PATH` was given, is written by all workers. It
    is copied before this returns, in about the time of one copy in memory, and travels in the background. A view of a
    replicated state is kept with all that it is a view of, as by torch.save. While bftd resizes the trainer this call
    does not return: the worker is started again, on the new nodes, and `load` gives it this state.
    """
    save_beside(state, None)


def save_beside(state: Any, beside: Beside | None) -> None:
    """As `save`, of a state that names what rank 0 writes `beside` it."""
    session = _session.current()
    if session.attached:
        _save(state, beside, session)
        session.fence.saved(time.monotonic())


def _save(state: Any, beside: Beside | None, session: _session.Session) -> None:
    rank, size = _rank_and_size()
    if bypath.wanted(state):
        bypath.save(state, _progress.step, _progress.samples, pause=session.pause_requested.is_set())
        return
    if rank != 0:
        return
    from elastic import snapshot

    step, samples = _progress.step, _progress.samples
    envelope = {"step": step, "samples": samples, "size": size, "state": state, **session.about()}
    saved = Saved(step, samples, functools.partial(snapshot.write, envelope))
    if beside is not None:
        saved = replace(saved, first=functools.partial(beside.put, beside.content), kept=beside.kept)
    if session.pause_requested.is_set():
        # Nothing changes it any more: this worker rests until it is ended.
        session.commit(saved)
        session.rest()
    taken = snapshot.Snapshot(envelope if beside is None else beside.content)
    if beside is None:
        saved = replace(saved, write=taken.write)
    else:  # the envelope has names and numbers alone, which nobody changes
        saved = replace(saved, first=functools.partial(taken.use, beside.put))
    session.commit(replace(saved, release=taken.release))
    taken.copy()
    session.ship_soon()


@dataclass(frozen=True)
class Beside:
    """What a state names: `put` writes `content` or a copy of it as `first`, and `kept` is called, of Saved."""

    content: Any
    put: Callable[[Any], dict[str, Any]]
    kept: Callable[[], None]


def run_id() -> str:
    """The run's name for an experiment tracker, the same through resizes, suspensions and `resume=`; after `load`.

    It is the trainer that the run began as, "" outside bftd.
    """
    return _session.current().run_id


def restarts() -> int:
    """The number of times that the run has gone on from a saved state, 0 in its first start; after `load`."""
    return _session.current().restarts


def _rank_and_size() -> tuple[int, int]:
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
