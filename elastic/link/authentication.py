"""Proof that both ends of a connection know the trainer's secret, and seals on all that follows. Does no I/O.

    peer -> driver   hello: role, lease and the like, and a nonce
    driver -> peer   challenge: a nonce, and the driver's proof
    peer -> driver   the peer's proof; from here on every message is sealed

Proofs and keys are HMAC-SHA256 over their purpose, the whole hello and the driver's nonce, keyed with the secret, which
itself is never sent. The purpose differs by direction, so a proof cannot be sent back to its author; both nonces are
fresh, so nothing can be replayed; and the hello is covered, so a proof holds for one role on one lease. Nothing is
encrypted: an eavesdropper on the network can read the messages, but can neither alter them nor add any.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass

from elastic.base.errors import WireError
from elastic.link.wire import Message, decode, encode

SECRET_BYTES = 32
HELLO_BYTES = 4096
"""The longest line accepted from a peer that has proved nothing yet."""

PROOF_BYTES = 64
"""The length of a proof, which is alone on the wire: hexadecimal, without an end of line."""

_LINE = b"l"
_TAG = slice(0, 65)
_REST = slice(65, None)
"""A tag is 64 digits followed by a space."""


def new_secret() -> str:
    """Return a new secret for one trainer, for one run of its driver."""
    return secrets.token_hex(SECRET_BYTES)


class Seal:
    """One direction of a connection: a message that is altered, repeated, dropped or out of order breaks the seal."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0

    def line(self, line: bytes) -> bytes:
        """Put the next seal in front of a message's line."""
        return self._tag(line) + line

    def opened(self, line: bytes) -> bytes:
        """Remove the seal from the next line; raises WireError if it does not fit."""
        if not hmac.compare_digest(line[_TAG], self._tag(line[_REST])):
            raise WireError("a message was altered on its way, or is not of this connection")
        return line[_REST]

    def _tag(self, line: bytes) -> bytes:
        self._count += 1
        return hmac.digest(self._key, _LINE + self._count.to_bytes(8, "big") + line, "sha256").hex().encode() + b" "


@dataclass(frozen=True)
class Seals:
    """The two directions of a connection, as one of its ends sees them."""

    outgoing: Seal
    incoming: Seal


class Introduction:
    """The side of an agent or a worker: it sends `hello`, then what `answer` returns for the driver's challenge."""

    def __init__(self, secret: str, about: Message) -> None:
        self._secret = secret
        self.hello = encode({**about, "op": "hello", "nonce": secrets.token_hex(SECRET_BYTES)})

    def answer(self, challenge: bytes) -> tuple[bytes, Seals]:
        """Return the proof to send and this end's seals; raises WireError if this driver does not know the secret."""
        message = decode(challenge)
        terms = _Terms(self._secret, self.hello, str(message.get("nonce")))
        if not _equal(message.get("proof"), terms.of("driver")):
            raise WireError("who listens at $BFT_DRIVER does not know the trainer's secret")
        return terms.of("peer").hex().encode(), Seals(Seal(terms.of("to driver")), Seal(terms.of("to peer")))


class Examination:
    """The driver's side: it sends `challenge`, then takes the proof; raises WireError unless it gets a hello."""

    def __init__(self, secret: str, hello: bytes) -> None:
        self.about = decode(hello)
        if self.about["op"] != "hello":
            raise WireError("a connection begins with a hello")
        nonce = secrets.token_hex(SECRET_BYTES)
        self._terms = _Terms(secret, hello, nonce)
        self.challenge = encode({"op": "challenge", "nonce": nonce, "proof": self._terms.of("driver").hex()})

    def seals(self, proof: bytes) -> Seals:
        """Return the seals of the driver's end; raises WireError if this peer does not know the secret."""
        if not hmac.compare_digest(proof, self._terms.of("peer").hex().encode()):
            raise WireError("a connection did not know the trainer's secret")
        return Seals(Seal(self._terms.of("to peer")), Seal(self._terms.of("to driver")))


class _Terms:
    """Proofs and keys that both ends derive from the secret, the hello and the driver's nonce."""

    def __init__(self, secret: str, hello: bytes, nonce: str) -> None:
        self._key = secret.encode()
        # Each part is preceded by its length: no two hellos and nonces make the same text.
        self._transcript = b"".join(
            len(part).to_bytes(4, "big") + part for part in (hello, nonce.encode(errors="replace"))
        )

    def of(self, purpose: str) -> bytes:
        return hmac.digest(self._key, purpose.encode() + b"\0" + self._transcript, "sha256")


def _equal(given: object, expected: bytes) -> bool:
    return isinstance(given, str) and hmac.compare_digest(given.encode(errors="replace"), expected.hex().encode())
