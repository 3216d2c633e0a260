"""What can go wrong around a trainer, each with one line that says what to do next."""

EXIT_LINK_LOST = 75
"""What a worker exits with that lost its link to the driver: a fault of neither it nor its script."""


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
