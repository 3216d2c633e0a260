"""The errors of a trainer and its commands, each with one line that says what to do next."""

import re

EXIT_LINK_LOST = 75
"""Exit code of a worker that has lost its driver: its script did nothing wrong, and is started again."""

EXIT_USAGE = 2
"""Exit code of a script that refuses its arguments, as argparse and click end it."""

OF_A_PEER = re.compile(
    r"(?i)connection (?:was )?(?:likely )?(?:closed|reset)|(?:closed|reset) by (?:remote )?peer|broken ?pipe"
    r"|connection(?:reset|aborted)?error|remote process exit|ncclremoteerror|dist(?:network|store)error"
    r"|horovodinternalerror"
)
"""Phrases of gloo, NCCL, torch's store, Horovod and Python for a connection that its peer closed."""


class ElasticError(Exception):
    """A failure that ends a command with `exit_code`."""

    exit_code = 1


class UsageError(ElasticError):
    """The user asked for something impossible; a command that raises this has started or submitted nothing."""

    exit_code = 2


class DaemonError(ElasticError):
    """The daemon cannot be reached or refused a request."""


class WireError(ElasticError):
    """A peer sent something that is not in the protocol, or too much of it."""


class LinkLostError(ElasticError):
    """A worker's connection to its driver is gone: the worker ends, to be started again."""

    exit_code = EXIT_LINK_LOST


class CheckpointError(ElasticError):
    """A checkpoint exists, but it cannot be read."""


SHARD_IN_OBJECT = (
    "the state holds a sharded tensor inside an object, where only rank 0's part of it would be kept: "
    "save state_dict() of the model and the optimizer instead of themselves"
)
"""The text of the CheckpointError for a state that no worker has in full."""
