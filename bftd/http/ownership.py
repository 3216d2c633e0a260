"""Whose trainer an id is: a job's is its user's, as Slurm says; one of `bft run` is of who registered it first."""

from __future__ import annotations

FOREGROUND = "run-"


def objection(
    id_: str, user: str, job_user: str | None, known_user: str | None, private: bool = False
) -> tuple[int, str] | None:
    """Why `user` may not register the trainer `id_`, as an HTTP status and one line; None where he may.

    `job_user` is whose job Slurm's last snapshot says that it is, `known_user` whose trainer of that id is known
    already; None where there is none. With `private` neither is named. A job that no snapshot has shown yet is
    nobody's: its driver asks again.
    """
    if known_user is not None and known_user != user:
        return 403, f"trainer {id_} belongs to {'another user' if private else known_user}, not to {user}"
    if id_.startswith(FOREGROUND):
        return None
    if not id_.isdecimal():
        return 400, f"trainer: id must be a job id or {FOREGROUND}<host>-<pid>, not {id_!r}"
    if job_user is None:
        # A driver that comes back while Slurm cannot be read was looked up when it came first.
        return None if known_user == user else (503, f"Slurm has not shown job {id_} yet: ask again")
    whose = "another user" if private else job_user
    return None if job_user == user else (403, f"job {id_} belongs to {whose}, not to {user}")
