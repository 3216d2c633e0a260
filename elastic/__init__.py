"""The calls that make a training script elastic.

A torchrun script loads, saves and calls one function a step::

    from bftd import elastic

    checkpoint = elastic.load()                  # None at the very first start
    ...
    if elastic.step(samples=len(batch), loss=loss.item(), save_every=20):
        elastic.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch})

A Horovod script needs no more than `import elastic.horovod`: `hvd.elastic.TorchState` then reports its progress, and
its committed state survives the loss of every node. Outside bftd all of this does nothing, so the same script runs
under plain `torchrun` and `horovodrun` too.
"""

import sys

from elastic import script
from elastic.script import resize_hooks as resizing
from elastic.script.api import load, restarts, run_id, save, step
from elastic.script.data import Batches as batches
from elastic.script.resize_hooks import on_resize

# The manual of 0.1 has it by this path, which stays until 1.1.
script.resizing = sys.modules["elastic.script.resizing"] = resizing  # type: ignore[attr-defined]

__all__ = ["batches", "load", "on_resize", "resizing", "restarts", "run_id", "save", "step"]
