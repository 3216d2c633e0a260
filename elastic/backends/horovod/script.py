"""The content of `import elastic.horovod`, with which hvd.elastic.TorchState reports, suspends and resumes.

The script stays as in Horovod's own documentation. Steps are counted at the optimizer, samples at
`ElasticSampler.record_batch` or by `elastic.batches`; a script without these calls `elastic.horovod.step(samples=...)`
once a step. A state attribute named `loss` is shown as the loss, and one named `total_steps` is the number of steps of
the whole training.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import threading
import time
from collections.abc import Callable
from numbers import Real
from typing import Any, BinaryIO

from horovod.common.basics import HorovodBasics

from elastic.backends.horovod import checkpoints
from elastic.backends.horovod.abort import SocketWatch, end_if_stuck
from elastic.backends.horovod.notification_address import mend_worker
from elastic.base.errors import CheckpointError
from elastic.script import ranks, resize_hooks
from elastic.worker import driver_link as _session
from elastic.worker.driver_link import PendingCheckpoint

_sockets = SocketWatch()


def _watch_init() -> None:
    """Make every hvd.init record the sockets that it opens.

    hvd.elastic keeps a reference to the bound method, so the class is patched, and before horovod.torch is imported.
    """
    original: Callable[..., Any] = HorovodBasics.init
    if getattr(original, "_bft_watched", False):
        return

    def init(self: HorovodBasics, *args: Any, **kwargs: Any) -> Any:
        with _sockets.opening():
            return original(self, *args, **kwargs)

    init._bft_watched = True  # type: ignore[attr-defined]
    HorovodBasics.init = init


_watch_init()
mend_worker()

import horovod.torch as hvd  # noqa: E402  (the patch above must come first)
import torch  # noqa: E402
from horovod.common.exceptions import HostsUpdatedInterrupt  # noqa: E402
from torch.optim.optimizer import (  # noqa: E402
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from elastic.checkpoint import buffers, snapshot  # noqa: E402

_UpstreamTorchState = hvd.elastic.TorchState
_UpstreamSampler = hvd.elastic.ElasticSampler


def _abort() -> None:
    """Make every collective that waits for a dead worker fail now.

    Horovod's own thread aborts NCCL's communicators when it loses its sockets; if that does not help, this worker ends
    by itself.
    """
    _sockets.shut()
    if hvd.nccl_built():
        threading.Thread(target=end_if_stuck, args=(_sockets, _last_words), daemon=True).start()


def _last_words() -> None:
    """Upload the state before this worker gives up, on rank 0 only: one is enough, and all workers may be stuck."""
    if _counter.rank == 0:
        _session.current().upload()


class TorchState(_UpstreamTorchState):  # type: ignore[misc, valid-type]
    """hvd.elastic.TorchState whose committed state also survives the loss of every node.

    It counts steps and samples inside the state, so that both roll back with it and are never counted twice.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        # Before the base class: its setattr and save are overridden below.
        self._bft_lost: int
        self._saved_state: dict[str, Any]
        object.__setattr__(self, "_bft_lost", 0)
        super().__init__(model=model, optimizer=optimizer, bft_step=0, bft_samples=0, **kwargs)
        for handler in self._handlers.values():
            if _OPTIMIZER in vars(handler):
                handler.sync = functools.partial(_sync_optimizer, handler.value, handler.sync)
        session = _session.current()
        session.on_abort = _abort
        if hvd.rank() == 0:
            download = session.download_checkpoint()
            if download.versions:
                self._load(checkpoints.load(download.versions))
            elif download.file is not None:
                self._load(snapshot.read(download.file))
        _counter.state, _counter.size, _counter.rank = self, hvd.size(), hvd.rank()
        self._commit()

    def save(self) -> None:
        """Keeps the current state in memory, as upstream does, and has it uploaded when the driver asks."""
        super().save()
        self._commit()
        if hvd.rank() == 0:
            # If the user cancels the job, Slurm kills every worker before the driver can ask for anything.
            _session.current().upload_soon()

    def restore(self) -> None:
        """Goes back to the last committed state and notes how many steps that costs."""
        object.__setattr__(self, "_bft_lost", self._bft_lost + max(0, self.bft_step - self._saved_state["bft_step"]))
        self._take_back()

    def check_host_updates(self) -> None:
        """Does as upstream; in addition, a graceful resize loses nothing even if it is noticed between two commits.

        After a resize, upstream broadcasts the *committed* attributes (epoch, batch) with the *live* weights; saving
        first makes them consistent.
        """
        session = _session.current()
        if session.pause_requested.is_set() and hvd.rank() == 0:
            self.save()
            session.rest()
        try:
            super().check_host_updates()
        except HostsUpdatedInterrupt:
            self.save()
            raise

    def sync(self) -> None:
        """Does as upstream, but does not count the optimizer step that it takes to create empty optimizer state."""
        began_s = time.monotonic()
        _counter.muted = True
        try:
            super().sync()
            # Of a broadcast state upstream keeps only the attributes: a worker that lost all others before its first
            # commit would go on at their step with the weights of its own start.
            super().save()
            self._commit()
        finally:
            _counter.muted = False
        _session.current().costs["load_s"] = time.monotonic() - began_s

    def on_reset(self) -> None:
        """Called by Horovod after a resize, before the state is synchronized."""
        _counter.depth = 0
        _session.current().regrouped()
        super().on_reset()
        before, _counter.size, _counter.rank = _counter.size, hvd.size(), hvd.rank()
        resize_hooks.resized(before, _counter.size)

    def step_done(self, samples: int) -> None:
        """Counts one step of this worker, in which all workers together processed `samples` samples."""
        self.bft_step += 1
        self.bft_samples += samples
        lost, self._bft_lost = self._bft_lost, 0
        loss = _number(getattr(self, "loss", None))
        total = _number(getattr(self, "total_steps", None))
        if total is not None:
            _session.current().set_total(total)
        # Every node has a worker with local rank 0, as rank 0 has: its cross size is the number of nodes.
        nodes = hvd.cross_size() if hvd.local_rank() == 0 else 0
        _session.current().step(self.bft_step, self.bft_samples, hvd.rank(), hvd.size(), loss, lost, nodes)

    def _commit(self) -> None:
        """Make upstream's latest copy the checkpoint that the driver gets.

        It is written later and without a lock: upstream's next save makes new copies, and changes none of these.
        """
        saved = self._saved_state
        handlers = {
            name: {key: value for key, value in vars(handler).items() if key.startswith("_saved")}
            for name, handler in self._handlers.items()
        }
        attributes = _Attributes(saved)
        write = functools.partial(_write, handlers, attributes)
        step, samples = saved["bft_step"], saved["bft_samples"]
        publish = checkpoints.way(lambda: _state(handlers, attributes), step, samples)
        _session.current().commit(PendingCheckpoint(step, samples, write, attributes.release, publish))

    def _take_back(self) -> None:
        """Restore as upstream does, from a copy: an optimizer goes on to change the tensors that it is given."""
        handlers = [handler for handler in self._handlers.values() if _OPTIMIZER in vars(handler)]
        saved = [(handler, vars(handler)[_OPTIMIZER]) for handler in handlers]
        try:
            for handler, state in saved:
                vars(handler)[_OPTIMIZER] = copy.deepcopy(state)
            super().restore()
        finally:
            for handler, state in saved:
                vars(handler)[_OPTIMIZER] = state

    def _load(self, data: dict[str, Any]) -> None:
        if "handlers" not in data:
            raise CheckpointError(
                "the checkpoint is a torchrun script's; submit that one, or submit this one without resume="
            )
        if set(data["handlers"]) != set(self._handlers) or set(data["attributes"]) != set(self._saved_state):
            raise SystemExit(
                "bft: the checkpoint is of another script (its TorchState has other fields); "
                "submit the job once more, without resume=, to start anew"
            )
        for name, saved in data["handlers"].items():
            vars(self._handlers[name]).update(saved)
        self._saved_state = data["attributes"]
        _session.current().goes_on(data)
        self._take_back()


_OPTIMIZER = "_saved_optimizer_state"
"""The attribute in which upstream's handler of an optimizer keeps its copy."""


def _sync_optimizer(optimizer: torch.optim.Optimizer, sync: Callable[[], None]) -> None:
    """Do as upstream, and keep the weights that it has broadcast.

    Upstream creates empty optimizer state by a step without gradients, in which weights decay: those of a worker that
    joins would be other than those of all others from then on.
    """
    empty = not optimizer.state_dict()["state"]
    parameters = [one for group in optimizer.param_groups for one in group["params"]] if empty else []
    kept = [one.detach().clone() for one in parameters]
    sync()
    with torch.no_grad():
        for one, before in zip(parameters, kept, strict=True):
            one.copy_(before)


class _Attributes:
    """A state's attributes as they are now: upstream keeps no copies, and their values may change in place."""

    _pool = buffers.BufferPool()

    def __init__(self, attributes: dict[str, Any]) -> None:
        self._plain = attributes
        self._taken: snapshot.StateCopy | None = None
        self._error: Exception | None = None
        if all(isinstance(value, (int, float, str, bytes, type(None))) for value in attributes.values()):
            return
        try:
            self._taken = snapshot.StateCopy(attributes, self._pool)
            self._taken.copy()
        except Exception as error:  # reported when the state is uploaded, as for any other: training goes on
            self._error = error.with_traceback(None)

    def get(self) -> dict[str, Any]:
        """Return the attributes; raises the error that kept them from being copied."""
        if self._error is not None:
            raise self._error
        return self._plain if self._taken is None else self._taken.rebuilt()

    def release(self) -> None:
        """Declare that they are not needed any more."""
        if self._taken is not None:
            self._taken.release()


def _write(handlers: dict[str, Any], attributes: _Attributes, file: BinaryIO) -> None:
    snapshot.write(_state(handlers, attributes), file)


def _state(handlers: dict[str, Any], attributes: _Attributes) -> dict[str, Any]:
    return {"handlers": handlers, "attributes": attributes.get(), **_session.current().about()}


def _number(value: object) -> float | None:
    """Return a number, or a tensor of one, as a float; None for anything else, such as a loss for each class."""
    if isinstance(value, Real) or torch.is_tensor(value):
        with contextlib.suppress(TypeError, ValueError, RuntimeError, OverflowError):
            return float(value)
    return None


class _Counter:
    """A counter of optimizer steps. hvd.DistributedOptimizer.step calls the wrapped class's too: that counts once."""

    def __init__(self) -> None:
        self.state: TorchState | None = None
        self.size = 1
        self.rank = 0
        self.depth = 0
        self.muted = False
        self.samples = 0
        self.sampled = False
        self.explicit = False
        self._counted: int | None = None
        self._optimizer: int | None = None

    def before(self, *_: Any) -> None:
        self.depth += 1

    def after(self, optimizer: Any, *_: Any) -> None:
        self.depth = max(0, self.depth - 1)
        if self.depth or self.muted or self.explicit or self.state is None:
            return
        # Only the steps of the first optimizer that steps are counted (a GAN has two).
        if self._optimizer is None:
            self._optimizer = id(optimizer)
        if self._optimizer == id(optimizer):
            self._counted = self.take_samples()
            self.state.step_done(self._counted)

    def count_by_call(self) -> None:
        """Count the script's calls from now on: the step of the first call was already counted at the optimizer."""
        if not self.explicit and self.state is not None and self._counted is not None:
            self.state.bft_step -= 1
            self.state.bft_samples -= self._counted
        self.explicit = True

    def took(self, samples: int) -> None:
        """Note the samples of all workers in the step that begins, perhaps once more."""
        self.sampled = True
        self.samples = samples

    def take_samples(self) -> int:
        """Return the samples since the last step; without a sampler or batches, one for each worker and step."""
        if not self.sampled:
            return int(hvd.size())
        samples, self.samples = self.samples, 0
        return samples


_counter = _Counter()


class ElasticSampler(_UpstreamSampler):  # type: ignore[misc, valid-type]
    """hvd.elastic.ElasticSampler that also counts the processed samples."""

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Does as upstream; samples count with the next step, as scripts call this after the optimizer's step."""
        super().record_batch(batch_idx, batch_size)
        _counter.sampled = True
        _counter.samples += int(batch_size) * self.num_replicas


def step(samples: int = 0, loss: float | None = None, *, total_steps: int | None = None) -> None:
    """Counts one training step with `samples` samples of this worker; for scripts without an ElasticSampler.

    `loss` is the loss to show, if any, and `total_steps` the number of steps of the whole training, if known.
    """
    _counter.count_by_call()
    if total_steps is not None:
        _session.current().set_total(total_steps)
    if _counter.state is not None:
        if loss is not None:
            object.__setattr__(_counter.state, "loss", loss)
        _counter.state.step_done(int(samples) * hvd.size())


def _done() -> int:
    """Return the steps that the state has counted; they roll back with it."""
    return 0 if _counter.state is None else int(_counter.state.bft_step)


def _install() -> None:
    ranks.use(ranks.World(hvd.rank, hvd.size, _done, by_script=False, took=_counter.took))
    hvd.elastic.TorchState = TorchState
    hvd.elastic.ElasticSampler = ElasticSampler
    register_optimizer_step_pre_hook(_counter.before)
    register_optimizer_step_post_hook(_counter.after)


_install()
