"""Proof that both ends of a connection know the trainer's secret, and seals on all that follows. Does no I/O.

    peer -> driver   hello: role, host and the like, and a nonce
    driver -> peer   challenge: a nonce, and the driver's proof
    peer -> driver   the peer's proof; from here on every message is sealed

Proofs and keys are HMAC-SHA256 over what they are for, the whole hello and the driver's nonce, keyed with the secret,
which itself never travels. What they are for differs by direction, so nothing can be sent back to whom it came from;
both nonces are fresh, so nothing can be used again; and the hello is covered, so a proof holds for one role on one
lease. Nothing is encrypted: who can listen on the network reads what is sent, but can neither alter nor add to it.
"""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass

from elastic.errors import WireError
from elastic.link.wire import Message, decode, encode

SECRET_BYTES = 32
HELLO_BYTES = 4096
"""The longest line that is taken from somebody who has proved nothing yet."""

PROOF_BYTES = 64
"""A proof alone on the wire: hexadecimal, without an end of line."""

_LINE = b"l"
_TAG = slice(0, 65)
_REST = slice(65, None)
"""A tag has 64 digits and a space behind it."""


def new_secret() -> str:
    """A secret for one trainer, for one life of its driver."""
    return secrets.token_hex(SECRET_BYTES)


class Seal:
    """One direction of a connection: what is altered, repeated, left out or out of order does not fit its seal."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0

    def line(self, line: bytes) -> bytes:
        """Puts the next seal in front of a message's line."""
        return self._tag(line) + line

    def opened(self, line: bytes) -> bytes:
        """Takes the seal off the next line; raises WireError when it does not fit."""
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
    """An agent's or a worker's side: sends `hello`, then what `answer` makes of the driver's challenge."""

    def __init__(self, secret: str, about: Message) -> None:
        self._secret = secret
        self.hello = encode({**about, "op": "hello", "nonce": secrets.token_hex(SECRET_BYTES)})

    def answer(self, challenge: bytes) -> tuple[bytes, Seals]:
        """The proof to send and the seals of this end; raises WireError when this driver does not know the secret."""
        message = decode(challenge)
        terms = _Terms(self._secret, self.hello, str(message.get("nonce")))
        if not _equal(message.get("proof"), terms.of("driver")):
            raise WireError("who listens at $BFT_DRIVER does not know the trainer's secret")
        return terms.of("peer").hex().encode(), Seals(Seal(terms.of("to driver")), Seal(terms.of("to peer")))


class Examination:
    """The driver's side: sends `challenge`, then takes the proof; raises WireError when the hello is none."""

    def __init__(self, secret: str, hello: bytes) -> None:
        self.about = decode(hello)
        if self.about["op"] != "hello":
            raise WireError("a connection begins with a hello")
        nonce = secrets.token_hex(SECRET_BYTES)
        self._terms = _Terms(secret, hello, nonce)
        self.challenge = encode({"op": "challenge", "nonce": nonce, "proof": self._terms.of("driver").hex()})

    def seals(self, proof: bytes) -> Seals:
        """The seals of the driver's end; raises WireError when this peer does not know the secret."""
        if not hmac.compare_digest(proof, self._terms.of("peer").hex().encode()):
            raise WireError("a connection did not know the trainer's secret")
        return Seals(Seal(self._terms.of("to peer")), Seal(self._terms.of("to driver")))


class _Terms:
    """What both ends derive from the secret, the hello and the driver's nonce."""

    def __init__(self, secret: str, hello: bytes, nonce: str) -> None:
        self._key = secret.encode()
        # Each part has a length of its own in front: no two hellos and nonces make the same text.
        self._said = b"".join(len(part).to_bytes(4, "big") + part for part in (hello, nonce.encode(errors="replace")))

    def of(self, purpose: str) -> bytes:
        return hmac.digest(self._key, purpose.encode() + b"\0" + self._said, "sha256")


def _equal(given: object, expected: bytes) -> bool:
    return isinstance(given, str) and hmac.compare_digest(given.encode(errors="replace"), expected.hex().encode())
