"""Users and administrators: names of uids, and the Unix group whose members may do everything."""

from __future__ import annotations

import grp
import os
import pwd
import time
from collections.abc import Callable
from dataclasses import dataclass

from bftd.base.errors import ConfigError

# Name services can be slow; a change of the group takes effect this late.
KEEP_S = 5.0
_MOST_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request; `admin` may act for everybody.

    Callers without a name, by the shared token or on the web page, have `user` "" and `uid` None.
    """

    user: str
    admin: bool
    uid: int | None = None


class Callers:
    """A lookup of callers by uid; administrators are root, this process's own user and the members of `group`.

    Raises ConfigError if there is no such group.
    """

    def __init__(self, group: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self._group = group
        self._clock = clock
        self._known: dict[int, tuple[float, Caller]] = {}
        if group and _gid(group) is None:
            raise ConfigError(
                f"[daemon] administrators: there is no Unix group {group} here: create it, or leave it empty"
            )

    def known(self, uid: int) -> Caller | None:
        """Return the caller of a uid that was looked up a moment ago, else None."""
        found = self._known.get(uid)
        return found[1] if found is not None and self._clock() - found[0] < KEEP_S else None

    def look_up(self, uid: int) -> Caller:
        """Ask the name services, which may block; a uid without a name is shown as its number."""
        if len(self._known) >= _MOST_KEPT:
            self._known.clear()
        try:
            entry = pwd.getpwuid(uid)
        except KeyError:
            caller = Caller(str(uid), uid in (0, os.geteuid()), uid)
        else:
            caller = Caller(entry.pw_name, uid in (0, os.geteuid()) or self._is_member(entry), uid)
        self._known[uid] = (self._clock(), caller)
        return caller

    def _is_member(self, entry: pwd.struct_passwd) -> bool:
        gid = _gid(self._group) if self._group else None
        return gid is not None and gid in os.getgrouplist(entry.pw_name, entry.pw_gid)


def _gid(group: str) -> int | None:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        return None
