"""The environment of a Horovod worker beside its node's: its place in the group, and nothing secret."""

from __future__ import annotations

import os

from elastic.link.address import split_address
from elastic.link.wire import Message


def worker_environment(start: Message) -> dict[str, str]:
    """Return the variables of a `start` message, without the key, which is kept in this process for its forked workers.

    The user's own settings for gloo and Horovod are kept.
    """
    from elastic.backends.horovod.notification_address import keep_key

    defaults = {name: value for name, value in start["defaults"].items() if name not in os.environ}
    # The rendezvous is beside the driver, which this node may reach by another address than other nodes do.
    where = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": split_address(os.environ["BFT_DRIVER"])[0]}
    environ = {**defaults, **start["env"], **where}
    keep_key(environ)
    return environ
