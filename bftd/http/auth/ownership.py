"""The owner of a trainer id: the user of that Slurm job, or for `bft run` the user whose uid is in the id.

Ids of `bft run` by older drivers have no uid: such an id belongs to the user who registered it first.
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
    """Return why `user` may not register the trainer `id_`, as an HTTP status and one line; None if they may.

    `job_user` is the user of that job in Slurm's last snapshot, `known_user` the user of the known trainer with that
    id; None if there is none. `uid` is the caller's, None if they may register for others. With `private` no other user
    is named. A job that no snapshot has shown yet belongs to nobody: its driver asks again.
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
        # The job of a driver that returns while Slurm cannot be read was checked when the driver first came.
        return None if known_user == user else (503, f"Slurm has not shown job {id_} yet: ask again")
    whose = "another user" if private else job_user
    return None if job_user == user else (403, f"job {id_} belongs to {whose}, not to {user}")
