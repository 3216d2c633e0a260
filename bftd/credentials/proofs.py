"""The payloads of the munge credentials by which bftd and its callers on other hosts prove their identity.

A request carries `Authorization: Munge <credential>`. Its payload binds it to one request to one daemon: the method,
the path with its query, a hash of the body, a number used once and the daemon's address, as `IP:port` of the
connection. The answer carries `Authentication-Info: Munge <credential>` over the request's number, the status and a
hash of the body. Each can be opened by the other side's uid only: a stolen one is useless elsewhere, Slurm included.
"""

from __future__ import annotations

import hashlib
import pwd
import secrets
from dataclasses import dataclass

from bftd.credentials import munge
from bftd.credentials.munge import MungeError
from bftd.protocol.address import DEFAULT_USER
from bftd.protocol.fields import printable

REQUEST_HEADER = "Authorization"
ANSWER_HEADER = "Authentication-Info"
SCHEME = "Munge "
# Long enough for a slow network and for clocks that differ a little; a request is sent as soon as it is made.
TTL_S = 60

_REQUEST = "bftd request 1"
_ANSWER = "bftd answer 1"


class UnknownUser(MungeError):
    """The user that the daemon runs as does not exist on this host."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class RequestCredential:
    """The contents of a request's credential; `body` is the SHA-256 of the body in hexadecimal."""

    nonce: str
    address: str
    method: str
    target: str
    body: str

    def payload(self) -> bytes:
        """Return the credential's payload."""
        return "\n".join((_REQUEST, self.nonce, self.address, self.method, self.target, self.body)).encode()

    @classmethod
    def of(cls, payload: bytes) -> RequestCredential:
        """Parse a payload; raises MungeError for one that was made for anything else."""
        mark, *fields = payload.decode(errors="replace").split("\n")
        if mark != _REQUEST or len(fields) != 5:
            raise MungeError("the credential is not one for a request to bftd")
        return cls(*fields)


def digest(body: bytes) -> str:
    """Return the hash of a body as it stands in a credential."""
    return hashlib.sha256(body).hexdigest()


def answer_payload(nonce: str, status: int, body: bytes) -> bytes:
    """Return the payload of an answer's credential."""
    return "\n".join((_ANSWER, nonce, str(status), digest(body))).encode()


def uid_of(user: str) -> int:
    """Return the uid of a user's name, or of a number as text; raises UnknownUser."""
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        if user.isdecimal():
            return int(user)
        raise UnknownUser(
            f"the daemon's user {user} does not exist on this host: create it, or write its uid for its name "
            "([daemon] user, or user@host:port)"
        ) from None


def unproved(reply: object) -> str:
    """Return the message of an unproved answer, made harmless: one short line that can be shown."""
    text = reply.get("error", "") if isinstance(reply, dict) else ""
    line = printable(str(text))
    return f"; it says: {line[:200]}" if line else ""


class CallerCredential:
    """A caller's side: makes a request's credential and checks the answer's. Calls block while munged is asked."""

    answer_header = ANSWER_HEADER

    def __init__(self, daemon_user: str = DEFAULT_USER, munge_socket: str = "") -> None:
        """Raise UnknownUser if there is no such user: without the daemon's uid nobody could detect an impostor."""
        self._daemon_uid = uid_of(daemon_user)
        self._daemon_user = daemon_user
        self._socket = munge_socket

    def request(self, address: str, method: str, target: str, body: bytes) -> tuple[str, dict[str, str]]:
        """Return the nonce and the header of one request; raises MungeError."""
        claim = RequestCredential(secrets.token_hex(16), address, method, target, digest(body))
        credential = munge.encode(claim.payload(), to_uid=self._daemon_uid, ttl_s=TTL_S, socket=self._socket)
        return claim.nonce, {REQUEST_HEADER: SCHEME + credential}

    def check(self, nonce: str, status: int, body: bytes, shown: str | None) -> None:
        """Raise MungeError unless the daemon's user, or root, gave this answer to the request of `nonce`.

        `shown` is the answer's header, None if it has none.
        """
        if shown is None or not shown.startswith(SCHEME):
            raise MungeError("it does not prove that it is bftd")
        opened = munge.decode(shown[len(SCHEME) :], socket=self._socket)
        if opened.uid not in (0, self._daemon_uid):
            raise MungeError(f"it runs as uid {opened.uid}, not as {self._daemon_user}")
        if opened.payload != answer_payload(nonce, status, body):
            raise MungeError("its proof is that of another answer")
