"""A Horovod script's distributed checkpoints, if `state=PATH` was given: the worker that is asked writes all of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from elastic.checkpoint import distributed
from elastic.link.wire import Message
from elastic.worker import driver_link as _session

if TYPE_CHECKING:
    from elastic.checkpoint.distributed.single_writer import Publisher

_KIND = "Horovod"
_publisher: Publisher | None = None


def way(state: Callable[[], dict[str, Any]], step: int, samples: int) -> Callable[[Callable[[], bool]], bool] | None:
    """Return how to publish a committed state (see PendingCheckpoint.publish); None if it is uploaded to the driver.

    Raises CheckpointError if the libraries for it are missing.
    """
    global _publisher
    if not (_session.current().attached and distributed.wanted(None)):
        return None
    if _publisher is None:
        from elastic.checkpoint.distributed.single_writer import (
            Publisher,  # torch.distributed.checkpoint takes a while to import
        )

        _publisher = Publisher(_session.current(), _KIND)
    publisher = _publisher
    return lambda lost: publisher.publish(state(), step, samples, lost)


def load(versions: Sequence[Message]) -> dict[str, Any]:
    """Load the state of the newest complete version; raises CheckpointError if this script can resume from none."""
    from elastic.checkpoint.distributed import loading

    loaded = loading.load(versions, None, _KIND)
    assert loaded is not None  # of several versions one is read or CheckpointError raised
    return cast(dict[str, Any], loaded.state)
