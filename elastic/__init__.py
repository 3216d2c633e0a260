"""The calls that make a training script elastic.

A torchrun script loads, saves and calls one function a step::

    import elastic

    checkpoint = elastic.load()                  # None at the very first start
    ...
    if elastic.step(samples=len(batch), loss=loss.item(), save_every=20):
        elastic.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch})

A Horovod script needs no more than `import elastic.horovod`: `hvd.elastic.TorchState` then reports its progress, and
its committed state survives the loss of every node. Outside bftd all of this does nothing, so the same script runs
under plain `torchrun` and `horovodrun` too.
"""

from elastic.script import resizing
from elastic.script.api import load, restarts, run_id, save, step
from elastic.script.data import Batches as batches
from elastic.script.resizing import on_resize

__all__ = ["batches", "load", "on_resize", "resizing", "restarts", "run_id", "save", "step"]
