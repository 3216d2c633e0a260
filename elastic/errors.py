"""What can go wrong around a trainer, each with one line that says what to do next."""

EXIT_LINK_LOST = 75
"""What a worker exits with that has lost its driver: its script did nothing wrong, and is started again."""


class ElasticError(Exception):
    """A failure that ends a command; `exit_code` is what the command exits with."""

    exit_code = 1


class UsageError(ElasticError):
    """The user asked for something that cannot be: nothing was started or submitted."""

    exit_code = 2


class DaemonError(ElasticError):
    """The daemon cannot be reached or refused a request."""


class WireError(ElasticError):
    """A peer sent something that is not of the protocol, or too much of it."""


class LinkLostError(ElasticError):
    """A worker's connection to its driver is gone: the worker ends, to be started again."""

    exit_code = EXIT_LINK_LOST


class StateError(ElasticError):
    """There is a saved state, and it cannot be had."""


SHARD_IN_OBJECT = (
    "the state holds a sharded tensor inside an object, where only rank 0's part of it would be kept: "
    "save state_dict() of the model and the optimizer instead of themselves"
)
"""What a StateError says of a state that no worker has the whole of."""
