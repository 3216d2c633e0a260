"""Other daemons of the same partition: on this host known by a socket's name, elsewhere by their pilots' comments."""

from __future__ import annotations

import asyncio
import hashlib
import pwd
import secrets
import socket
import struct
from collections.abc import Collection, Mapping

from bftd.core.domain import Trainer
from bftd.core.sentences import foreign_pilots
from bftd.errors import BftError
from bftd.pool.occupancy import RUNNING
from bftd.protocol import comment
from bftd.service.ledger import Ledger
from slurm_plugin.types import Snapshot

# Under this name the ledger keeps by which words this daemon's pilots name it.
IDENTITY = "identity"


class AnotherDaemon(BftError):
    """The partition is harvested by another daemon."""


def identities(ledger: Ledger) -> tuple[str, ...]:
    """The words by which pilots name this daemon, its own first: they stay with the ledger, wherever that is moved."""
    kept = tuple(str(word) for word in ledger.kept(IDENTITY).get("words", ()))
    if not kept:
        kept = (secrets.token_hex(4),)
        ledger.keep(IDENTITY, {"words": list(kept)})
    return kept


def uids_of(user: str) -> set[int]:
    """The uid of a user, by name or number; none of one that is not known here."""
    if user.isdecimal():
        return {int(user)}
    try:
        return {pwd.getpwnam(user).pw_uid}
    except KeyError:
        return set()


async def claim(cluster: str, partition: str, believed: Collection[int]) -> asyncio.AbstractServer | None:
    """Take a partition of a cluster for this process, among all of this host, until the answer is closed.

    Raises AnotherDaemon where a process of root or of a `believed` uid has it. Anybody may take a name before us, so
    one of another user is no daemon: then the answer is None.
    """
    name = hashlib.sha256(f"{cluster}\n{partition}".encode()).hexdigest()[:32]
    address = f"\0bftd.{name}"
    mine = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        mine.bind(address)
    except OSError:
        mine.close()
        holder = _holder(address)
        if holder is None or holder[1] not in {0, *believed}:
            return None
        message = f"another bftd of this host (process {holder[0]}) harvests {partition}: stop one of the two"
        raise AnotherDaemon(message) from None
    # who connects only wants to see whose it is
    return await asyncio.start_unix_server(lambda _, writer: writer.close(), sock=mine)


def _holder(address: str) -> tuple[int, int] | None:
    """Process and uid of who listens at an address; None where nobody does any more."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as asking:
        asking.settimeout(1.0)
        try:
            asking.connect(address)
            answer = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except OSError:
            return None
    pid, uid, _ = struct.unpack("3i", answer)
    return pid, uid


def foreign(
    snapshot: Snapshot, partitions: Collection[str], identities: Collection[str], trainers: Mapping[str, Trainer]
) -> dict[str, dict[str, str]]:
    """The pilots of other daemons that run: by daemon, each job's id with its user.

    Those of a trainer that is known here, and of its user, are none: its driver came over from another daemon.
    """
    found: dict[str, dict[str, str]] = {}
    for job in snapshot.jobs:
        identity = comment.daemon_of(job.comment)
        if not identity or identity in identities or job.state not in RUNNING:
            continue
        trainer = trainers.get((comment.parse(job.comment) or ("",))[0])
        if not set(partitions).isdisjoint(job.partition) and (trainer is None or trainer.user != job.user):
            found.setdefault(identity, {})[job.id] = job.user
    return found


def refuse(found: Mapping[str, Mapping[str, str]]) -> None:
    """Raise AnotherDaemon where there are pilots of one."""
    for identity, jobs in found.items():
        told = foreign_pilots(identity, tuple(jobs), tuple(sorted(set(jobs.values()))))
        raise AnotherDaemon(f"{told}, or, if that one is gone for good, run `bftd --take-over` once")
