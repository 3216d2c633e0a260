"""A Horovod script's states by path, where `state=PATH` was given: whichever worker is asked writes all of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from elastic import bypath
from elastic import session as _session
from elastic.link.wire import Message

if TYPE_CHECKING:
    from elastic.bypath.single import Publisher

_KIND = "Horovod"
_publisher: Publisher | None = None


def way(state: Callable[[], dict[str, Any]], step: int, samples: int) -> Callable[[Callable[[], bool]], bool] | None:
    """How a committed state goes by path, as Saved.publish says; None where it goes through the driver.

    Raises StateError where the libraries for it are missing.
    """
    global _publisher
    if not (_session.current().attached and bypath.wanted(None)):
        return None
    if _publisher is None:
        from elastic.bypath.single import Publisher  # torch.distributed.checkpoint takes a while

        _publisher = Publisher(_session.current(), _KIND)
    publisher = _publisher
    return lambda lost: publisher.publish(state(), step, samples, lost)


def load(generations: Sequence[Message]) -> dict[str, Any]:
    """The state of the newest whole one; raises StateError when there is none that this script can go on from."""
    from elastic.bypath import loading

    loaded = loading.load(generations, None, _KIND)
    assert loaded is not None  # of some generations one is read, or it is said why not
    return cast(dict[str, Any], loaded.state)
