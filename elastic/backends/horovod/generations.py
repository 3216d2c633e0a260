"""A Horovod script's states by path, if `state=PATH` was given: the worker that is asked writes all of one."""

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
    """Return how to publish a committed state by path (see Saved.publish); None if it goes through the driver.

    Raises StateError if the libraries for it are missing.
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


def load(generations: Sequence[Message]) -> dict[str, Any]:
    """Load the state of the newest complete generation; raises StateError if this script can resume from none."""
    from elastic.checkpoint.distributed import loading

    loaded = loading.load(generations, None, _KIND)
    assert loaded is not None  # if there are generations, one is read or StateError raised
    return cast(dict[str, Any], loaded.state)
