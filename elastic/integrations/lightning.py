"""A Lightning Trainer that grows, shrinks and is suspended: a callback, and a loader that resumes at its step."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.utilities.data import extract_batch_size

import elastic
from elastic.base.errors import UsageError
from elastic.base.timing import REPORT_S
from elastic.integrations import checkpoint
from elastic.script import ranks
from elastic.script.data import Batches
from elastic.worker import driver_link

_FILE = "lightning.ckpt"
_WHOLE = (SingleDeviceStrategy, DDPStrategy)
"""Strategies in which every rank has the whole model; those of sharded models derive from them."""


class EachStep:
    """A loader over `elastic.batches` as one endless epoch, which resumes at exactly the next step.

    Lightning counts the batches of an epoch, and would skip none of a loader that begins again. Here the position is
    the step, of `accumulate_grad_batches` batches. Create the batches without `micro_batch`, with `drop_last`, and with
    a global batch that every number of workers divides.
    """

    accumulated: ClassVar[int] = 1
    """Batches a step in this process's Trainer, as its ElasticCallback found it configured."""

    fed: ClassVar[Batches | None] = None
    """The batches that this process's Trainer trains on."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        batches = getattr(self._loader, "batch_sampler", None)
        if isinstance(batches, Batches):
            batches.a_step, EachStep.fed = EachStep.accumulated, batches
        return iter(self._loader)


class ElasticCallback(Callback):
    """A callback that reports the Trainer's steps to bftd, and saves and resumes with Lightning's own checkpoint::

        batches = elastic.batches(dataset, global_batch=256, epochs=90, drop_last=True)
        loader = EachStep(DataLoader(dataset, batch_sampler=batches, num_workers=4))
        callback = ElasticCallback()
        trainer = Trainer(callbacks=[callback], max_epochs=1, strategy="ddp", use_distributed_sampler=False,
                          num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", 1)))
        trainer.fit(model, loader, ckpt_path=callback.checkpoint())

    Model, optimizers, schedulers, precision, loops, callbacks and each rank's random number generators are resumed.
    With any loader but EachStep, Lightning resumes in the middle of an epoch with the epoch's first samples again. The
    checkpoint is uploaded to the driver; with `folder`, on a file system that all nodes share, it stays there and only
    its name is uploaded: use that for sharded models and for models too large to upload. The two newest are kept. bftd
    chooses how often to save, from the cost of a save, or saves every `save_every` steps.
    """

    def __init__(self, *, folder: str | None = None, save_every: int | None = None) -> None:
        self._keeper = checkpoint.Keeper(folder)
        self._save_every = save_every
        self._asked = False
        self._resumed: Path | None = None
        self._step = 0
        self._samples = 0
        self._batches = 0
        self._loss_s = 0.0

    def checkpoint(self) -> str | None:
        """Returns the checkpoint to resume from, for `fit`, or None at the very first start. Raises CheckpointError."""
        self._asked = True
        saved = elastic.load()
        if saved is None:
            return None
        self._resumed = self._keeper.open(saved)
        return str(self._resumed / _FILE)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Notes how many batches make a step, before any loader begins."""
        EachStep.accumulated = trainer.accumulate_grad_batches

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restores what Lightning leaves out; raises UsageError if the script would start from scratch by mistake."""
        if driver_link.current().attached and not self._asked:
            raise UsageError("ElasticCallback: call trainer.fit(..., ckpt_path=callback.checkpoint())")
        self._step = trainer.global_step
        if self._resumed is not None:
            checkpoint.restore_rng(self._resumed)
            self._keeper.close(self._resumed)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Counts the step if the batch ended one, and saves if bftd asks for it. Raises UsageError as `_check` does."""
        self._samples += extract_batch_size(batch)
        self._batches += 1
        if trainer.global_step == self._step:
            return
        self._check()
        samples, self._step, self._samples, self._batches = self._samples, trainer.global_step, 0, 0
        # Set by `max_steps`; Lightning's -1 means none. With an EachStep loader, elastic.batches knows the number.
        total = trainer.max_steps if trainer.max_steps > 0 else None
        loss = self._loss(outputs)
        due = elastic.step(samples=samples, loss=loss, save_every=self._save_every, total_steps=total)
        if due and driver_link.current().attached:
            with self._keeper.saving(self._step, type(trainer.strategy) not in _WHOLE) as folder:
                trainer.save_checkpoint(folder / _FILE)
                checkpoint.keep_rng(folder)

    def _check(self) -> None:
        """Raises UsageError if the step took another number of batches: EachStep would resume at the wrong samples."""
        fed, each = EachStep.fed, EachStep.accumulated
        if fed is None or self._batches in (each, (fed.end or 0) - ranks.current().step() * each):
            return
        raise UsageError(
            f"ElasticCallback: a step of {self._batches} batches, where accumulate_grad_batches was {each} at the "
            "start: EachStep could not go on at the right samples; accumulate as many for every step, also by hand"
        )

    def _loss(self, outputs: Any) -> float | None:
        """Returns the loss, at most once in REPORT_S: to read it off a GPU waits for the GPU."""
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if loss is None or time.monotonic() - self._loss_s < REPORT_S:
            return None
        self._loss_s = time.monotonic()
        return float(loss)
