"""An Accelerate script that grows, shrinks and is suspended: a helper beside its Accelerator."""

from __future__ import annotations

from accelerate import Accelerator
from accelerate.state import AcceleratorState

import elastic
from elastic.integrations import checkpoint
from elastic.worker import driver_link


class Elastic:
    """A helper that reports the script's steps to bftd, and saves and resumes with Accelerate's own checkpoint::

        model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
        run = Elastic(accelerator)                       # resumes what is prepared and registered
        for step in elastic.batches(dataset, global_batch=256, seed=7).steps(loader):
            ...
            run.step(global_samples=step.global_samples, loss=loss)  # saves when bftd asks for it

    Models, optimizers, schedulers, the scaler, objects registered for checkpointing and each rank's random number
    generators are resumed. The place in the dataset is the number of steps done, `run.done`: `elastic.batches`
    continues from it; with a prepared loader, pass it to `accelerator.skip_first_batches`. The checkpoint is uploaded
    to the driver; with `folder`, on a file system that all nodes share, it stays there and only its name is uploaded:
    use that for sharded models and for models too large to upload. The two newest are kept. bftd chooses how often to
    save, from the cost of a save, or saves every `save_every` steps. Raises CheckpointError.
    """

    def __init__(self, accelerator: Accelerator, *, folder: str | None = None, save_every: int | None = None) -> None:
        self._accelerator = accelerator
        self._save_every = save_every
        self._keeper = checkpoint.Keeper(folder)
        self.done = 0
        saved = elastic.load()
        if saved is not None:
            self.done = int(saved["done"])
            place = self._keeper.open(saved)
            accelerator.load_state(str(place))
            self._keeper.close(place)

    def step(
        self,
        samples: int = 0,
        loss: float | None = None,
        *,
        global_samples: int | None = None,
        total_steps: int | None = None,
    ) -> None:
        """Counts an optimizer step with `samples` of this worker, and saves if bftd asks for it; call it on every rank.

        `total_steps` is the number of steps of the whole training; with `elastic.batches(..., epochs=N)` it is known.
        """
        self.done += 1
        due = elastic.step(
            samples=samples,
            loss=loss,
            save_every=self._save_every,
            global_samples=global_samples,
            total_steps=total_steps,
        )
        if due and driver_link.current().attached:
            with self._keeper.saving(self.done, sharded(), done=self.done) as folder:
                self._accelerator.save_state(str(folder))


def sharded() -> bool:
    """Whether the model is sharded among ranks; also for Hugging Face's Trainer, which trains with Accelerate too."""
    return AcceleratorState().distributed_type.value in ("FSDP", "DEEPSPEED", "MEGATRON_LM")
