"""The errors that bftd shows to its users: one line each, which says what to do next."""

from __future__ import annotations


class BftError(Exception):
    """Base class of all errors that end a bftd command with one line and `exit_code`."""

    exit_code = 1


class UsageError(BftError):
    """A request that is impossible: a wrong option, name or range."""

    exit_code = 2


class ConfigError(UsageError):
    """A configuration file that cannot be read or holds a wrong key or value."""


class LedgerError(BftError):
    """A ledger that cannot be opened, read or written, or has another version."""


class AnotherDaemon(BftError):
    """Another daemon of this host holds what this one needs: systemd does not restart this one by itself (systemd/)."""

    exit_code = 3


class LedgerInUse(AnotherDaemon, LedgerError):
    """A ledger that belongs to a running daemon."""


class DaemonUnreachable(BftError):
    """No daemon answers where the client looked for it."""


class TimedOut(BftError, TimeoutError):
    """An awaited event that did not happen in time."""


class ApiError(BftError):
    """A request that the daemon refused; `status` is the HTTP status of its answer."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status
