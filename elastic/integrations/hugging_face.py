"""A Hugging Face Trainer that grows, shrinks and is suspended: a callback."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

import elastic
from elastic.base.errors import UsageError
from elastic.integrations import checkpoint
from elastic.integrations.accelerate import sharded
from elastic.worker import driver_link

_STATE = "trainer_state.json"
_FOLDER = "_elastic"
"""In `output_dir`. The Trainer uploads nothing whose name begins with an underscore, and does not take this folder for
one of its checkpoints."""
_OURS = {"save_only_model": False, "push_to_hub": False, "save_total_limit": None}
"""Trainer settings that must not affect a checkpoint for bftd, and their values while it is written."""


class ElasticCallback(TrainerCallback):
    """A callback that reports the Trainer's steps to bftd, and saves and resumes with the Trainer's own checkpoint::

        callback = ElasticCallback(global_batch=256)
        trainer = Trainer(..., callbacks=[callback])
        trainer.train(resume_from_checkpoint=callback.checkpoint())

    Model, optimizer, scheduler, scaler, the random number generators of every rank and the place in the epoch are
    resumed as the Trainer resumes them. With `global_batch` the number of samples of an optimizer step is constant: a
    worker accumulates more pieces if there are fewer workers, and step k has the same samples on any number of them.

    The checkpoint is uploaded to the driver, so no shared file system is needed; `output_dir` and its checkpoints stay
    as the script has set them. With `shared=True` the checkpoint goes to `_elastic` in `output_dir`, which all nodes
    must share, and only its name is uploaded: use that for sharded models (FSDP, DeepSpeed) and for models too large to
    upload. The two newest are kept. bftd chooses how often to save, from the cost of a save, or saves every
    `save_every` steps. Outside bftd nothing is saved or resumed.
    """

    def __init__(self, *, global_batch: int | None = None, shared: bool = False, save_every: int | None = None) -> None:
        self._global_batch = global_batch
        self._shared = shared
        self._save_every = save_every
        self._asked = False
        self._resumed: Path | None = None
        self._due = False
        self._theirs: dict[str, Any] = {}
        self._keeper = checkpoint.Keeper()
        self._saving = contextlib.ExitStack()
        self._held: checkpoint.Held = {}
        self._also_theirs = False
        self._best: str | None = None

    def checkpoint(self) -> str | None:
        """Returns the folder to resume from, for `train`, or None at the very first start. Raises CheckpointError."""
        self._asked = True
        saved = elastic.load()
        if saved is None:
            return None
        self._resumed = self._keeper.open(saved)
        return str(self._resumed)

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Sets the number of pieces that workers accumulate to make up the global batch; raises UsageError."""
        if self._global_batch is not None:
            at_once = args.train_batch_size * args.world_size
            pieces, rest = divmod(self._global_batch, at_once)
            if rest or not pieces:
                raise UsageError(
                    f"ElasticCallback(global_batch={self._global_batch}): {args.world_size} workers with "
                    f"{args.train_batch_size} samples at once cannot make it up; choose numbers that divide it, and "
                    "the numbers of nodes with --elastic=...,sizes=1:2:4"
                )
            args.gradient_accumulation_steps = pieces

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Sets up the shared folder; raises UsageError if the script would start from scratch by mistake."""
        if driver_link.current().attached and not self._asked:
            raise UsageError("ElasticCallback: call trainer.train(resume_from_checkpoint=callback.checkpoint())")
        if self._shared:
            self._keeper.stay(Path(str(args.output_dir), _FOLDER))

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Counts the step; if bftd asks for a save, has the Trainer write a checkpoint."""
        if self._resumed is not None:
            self._keeper.close(self._resumed)
            self._resumed = None
        samples = args.train_batch_size * args.gradient_accumulation_steps
        logged = state.log_history[-1].get("loss") if state.log_history else None
        # The Trainer computes it from the epochs; a dataset without a length has none.
        total = state.max_steps if state.max_steps > 0 else None
        due = elastic.step(samples=samples, loss=logged, save_every=self._save_every, total_steps=total)
        due = due and driver_link.current().attached
        if due or self._due:  # a save that an evaluation delayed is made up for now
            self._begin(args, state, control)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Gives bftd the checkpoint that it asked for."""
        if not self._due:
            return
        folder = Path(str(args.output_dir), f"checkpoint-{state.global_step}").resolve()
        self._end(args)
        best = state.best_global_step == state.global_step
        theirs = self._also_theirs or (best and args.save_strategy == "best")
        if best:  # the Trainer has noted the folder that goes away
            state.best_model_checkpoint = str(Path(str(args.output_dir), folder.name)) if theirs else self._best
            if state.is_world_process_zero and (folder / _STATE).exists():
                state.save_to_json(str(folder / _STATE))
        held = {name.removeprefix(f"{folder.name}/"): content for name, content in self._held.items()}
        self._held = {}  # it may hold a whole model and optimizer
        if theirs:
            checkpoint.written(folder, held)
            held = {}
            self._keeper.copy(folder, Path(str(args.output_dir), folder.name))
        self._keeper.keep(state.global_step, folder, held)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Restores the script's own settings, even if an evaluation delayed the last save."""
        self._end(args)

    def _begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        self._end(args)
        self._best = state.best_model_checkpoint
        self._also_theirs = control.should_save
        self._due = control.should_save = True
        ours = {**_OURS, "output_dir": str(self._keeper.begin(state.global_step, sharded()))}
        self._theirs = {name: getattr(args, name) for name in ours}
        vars(args).update(ours)
        self._held = self._saving.enter_context(self._keeper.collecting(hold=not self._also_theirs))

    def _end(self, args: TrainingArguments) -> None:
        self._saving.close()
        vars(args).update(self._theirs)
        self._due, self._theirs = False, {}
