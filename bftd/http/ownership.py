"""Whose trainer an id is: a job's is its user's, as Slurm says; one of `bft run` is of the user whose uid is in it.

Drivers of older versions have no uid in the ids of `bft run`: such a one is of who registered it first.
"""

from __future__ import annotations

import re

FOREGROUND = "run-"
_OF_UID = re.compile(r"run-.+-[0-9]+\.u([0-9]+)\.[0-9a-f]+")


def objection(
    id_: str,
    user: str,
    job_user: str | None,
    known_user: str | None,
    uid: int | None = None,
    private: bool = False,
) -> tuple[int, str] | None:
    """Why `user` may not register the trainer `id_`, as an HTTP status and one line; None where he may.

    `job_user` is whose job Slurm's last snapshot says that it is, `known_user` whose trainer of that id is known
    already; None where there is none. `uid` is the caller's, None for one who may register for others. With `private`
    no other user is named. A job that no snapshot has shown yet is nobody's: its driver asks again.
    """
    if known_user is not None and known_user != user:
        return 403, f"trainer {id_} belongs to {'another user' if private else known_user}, not to {user}"
    if id_.startswith(FOREGROUND):
        of_uid = _OF_UID.fullmatch(id_)
        if of_uid is None or uid is None or of_uid[1] == str(uid):
            return None
        return 403, f"trainer {id_} belongs to uid {of_uid[1]}, not to {user}"
    if not id_.isdecimal():
        return 400, f"trainer: id must be a job id or {FOREGROUND}<host>-<pid>, not {id_!r}"
    if job_user is None:
        # A driver that comes back while Slurm cannot be read was looked up when it came first.
        return None if known_user == user else (503, f"Slurm has not shown job {id_} yet: ask again")
    whose = "another user" if private else job_user
    return None if job_user == user else (403, f"job {id_} belongs to {whose}, not to {user}")
