"""The errors that bftd shows to its users: one line each, which says what to do next."""

from __future__ import annotations


class BftError(Exception):
    """Root of all errors that end a bftd command with one line and `exit_code`."""

    exit_code = 1


class UsageError(BftError):
    """What was asked for cannot be: a wrong option, name or range."""

    exit_code = 2


class ConfigError(UsageError):
    """The configuration file cannot be read or holds a wrong key or value."""


class LedgerError(BftError):
    """The ledger cannot be opened, or is of another version."""


class AnotherDaemon(BftError):
    """Another daemon of this host has what this one needs: systemd does not start it again by itself (systemd/)."""

    exit_code = 3


class LedgerInUse(AnotherDaemon, LedgerError):
    """The ledger belongs to a running daemon."""


class DaemonUnreachable(BftError):
    """No daemon answers where the client looked for it."""


class TimedOut(BftError, TimeoutError):
    """What was waited for did not come about in time."""


class ApiError(BftError):
    """The daemon refused a request; `status` is the HTTP status it answered with."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status
