"""Checks of the daemon as this host and this user reach it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from bftd import __version__, api_client
from bftd.base import health
from bftd.base.errors import BftError
from bftd.base.format import span
from bftd.doctor.check import Check, Level
from bftd.protocol.address import is_path
from elastic.driver.settings import own_user

# A status of a large cluster is up to a second old; credentials expire within a minute.
_APART_S, _APART_MOST_S = 5.0, 60.0


def daemon(config_path: str | None) -> Iterator[Check]:
    """Check whether the daemon answers, its version and clock, its own view of its health, and this user's limits."""
    asked_s = time.time()
    try:
        found = api_client.find(config_path)
        status = found.status()
    except BftError as error:
        yield Check("daemon", "failure", str(error))
        for name in ("daemon's version", "daemon's clock", "daemon's state", "your limits"):
            yield Check(name, "unknown", "the daemon gave no answer: see above")
        return
    answered_s, shown_s = time.time(), float(status["time_s"])
    how = "its socket" if is_path(found.address) else f"TCP with {found.proof}"
    took = f"{1000 * (answered_s - asked_s):.0f} ms"
    yield Check("daemon", "ok", f"{found.address} answers by {how} in {took}, in {status['mode']} mode")
    yield _version(str(status.get("version")))
    yield apart("daemon's clock", shown_s - answered_s, shown_s - asked_s)
    problems = tuple(health.problems(status))
    for problem in problems:
        level: Level = "failure" if problem.level == "CRITICAL" else "warning"
        yield Check("daemon's state", level, f"{problem.text}: see bft status and its log (operate.md)")
    if not problems:
        yield Check("daemon's state", "ok", "nothing to report")
    yield _own_limits(status)


def _version(version: str) -> Check:
    if version == __version__:
        return Check("daemon's version", "ok", f"{version}, as bft's")
    return Check(
        "daemon's version", "warning", f"{version}, and bft's is {__version__}: upgrade the older one (install.md)"
    )


def apart(name: str, least_s: float, most_s: float) -> Check:
    """Check a clock that is ahead of this host's by `least_s` to `most_s` seconds."""
    apart_s = max(least_s, -most_s, 0.0)
    if apart_s <= _APART_S:
        return Check(name, "ok", "agrees with this host's")
    which = "ahead of" if least_s > 0 else "behind"
    level: Level = "failure" if apart_s >= _APART_MOST_S else "warning"
    return Check(name, level, f"{span(apart_s)} {which} this host's: synchronise both, for example with chrony")


def _own_limits(status: dict[str, Any]) -> Check:
    """Check whether this user has reached a limit of the daemon's."""
    user = own_user()
    name = "your limits"
    reached = [cap["text"] for cap in status.get("caps", ()) if (cap.get("kind"), cap.get("name")) == ("user", user)]
    if reached:
        return Check(name, "warning", f"{'; '.join(reached)}: wait, or ask your administrators for more")
    return Check(name, "ok", "none that bftd has set is reached")
