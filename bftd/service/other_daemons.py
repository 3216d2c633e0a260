"""Other daemons of the same partition: known by a socket's name on this host, elsewhere by their pilots' comments."""

from __future__ import annotations

import asyncio
import hashlib
import pwd
import secrets
import socket
import struct
from collections.abc import Collection

from bftd.base.errors import AnotherDaemon, UsageError
from bftd.core.inputs import orphan_jobs
from bftd.core.model import messages
from bftd.ledger.file import Ledger
from bftd.pool.occupancy import RUNNING
from bftd.protocol import comment
from slurm_plugin.read.types import Snapshot

# The ledger keeps the words by which this daemon's pilots name it under this name.
IDENTITY = "identity"


def identities(ledger: Ledger) -> tuple[str, ...]:
    """Return the words by which pilots name this daemon, its own first: they stay with the ledger if that is moved."""
    kept = tuple(str(word) for word in ledger.kept(IDENTITY).get("words", ()))
    if not kept:
        kept = (secrets.token_hex(4),)
        ledger.keep(IDENTITY, {"words": list(kept)})
    return kept


def uids_of(user: str) -> set[int]:
    """Return the uid of a user, given by name or number; empty for a user that is unknown here."""
    if user.isdecimal():
        return {int(user)}
    try:
        return {pwd.getpwnam(user).pw_uid}
    except KeyError:
        return set()


async def claim(cluster: str, partition: str, believed: Collection[int]) -> asyncio.AbstractServer | None:
    """Take a partition of a cluster for this process, among all of this host, until the returned server is closed.

    Raises AnotherDaemon if a process of root or of a `believed` uid has it. Anybody may take the name first, so a
    process of another user is not taken for a daemon: then the result is None.
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
    # a process that connects only wants to see who holds the name
    return await asyncio.start_unix_server(lambda _, writer: writer.close(), sock=mine)


def _holder(address: str) -> tuple[int, int] | None:
    """Return process id and uid of the process listening at an address; None if there is none any more."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as asking:
        asking.settimeout(1.0)
        try:
            asking.connect(address)
            answer = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except OSError:
            return None
    pid, uid, _ = struct.unpack("3i", answer)
    return pid, uid


def take_over(ledger: Ledger, snapshot: Snapshot, partitions: Collection[str], spared: Collection[str]) -> str:
    """Record in the ledger that running pilots of other daemons belong to this one; returns one line per daemon.

    Raises UsageError if none of their words is believed (`bftd.core.inputs.orphan_jobs.believed`): a word that a user
    has forged would be this daemon's for ever.
    """
    kept = identities(ledger)
    found: dict[str, dict[str, str]] = {}
    for job in snapshot.jobs:
        word = comment.daemon_of(job.comment)
        if word and word not in kept and job.state in RUNNING and not set(partitions).isdisjoint(job.partition):
            found.setdefault(word, {})[job.id] = job.user
    if not found:
        return f"no pilot of another bftd runs in {', '.join(partitions)}"
    good, lines = [], []
    for word, users in found.items():
        jobs = messages.jobs_of(sorted(users), sorted(set(users.values())))
        if orphan_jobs.believed(users.values(), spared):
            good.append(word)
            lines.append(f"pilots of {word} ({jobs}) are taken for this bftd's own from now on")
        else:
            lines.append(f"{word} is not taken over ({jobs}): a user alone may have written it; it holds nothing up")
    if not good:
        raise UsageError("; ".join(lines))
    ledger.keep(IDENTITY, {"words": [*kept, *good]})
    return "\n".join(lines)
