"""The daemon's side of munge: opens a request's credential, checks what it is bound to, and signs the answer."""

from __future__ import annotations

import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable

from bftd.base.errors import ConfigError
from bftd.credentials import munge, proofs
from bftd.credentials.munge import MungeError
from bftd.credentials.proofs import TTL_S, RequestCredential

_NONCE = re.compile(r"[0-9a-f]{32}")


class Nonces:
    """The numbers seen in the last `keep_s` seconds.

    munged refuses replayed credentials too, but forgets them when it is restarted.
    """

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._seen: OrderedDict[tuple[int, str], float] = OrderedDict()  # in order of time

    def __len__(self) -> int:
        return len(self._seen)

    def is_new(self, uid: int, nonce: str, now_s: float) -> bool:
        """Remember the number; returns False if this uid used it before."""
        while self._seen and now_s - next(iter(self._seen.values())) > self._keep_s:
            self._seen.popitem(last=False)
        if (uid, nonce) in self._seen:
            return False
        self._seen[uid, nonce] = now_s
        return True


class MungeGate:
    """The identification of callers by munge credentials; `open` and `sign` block while munged is asked.

    Raises ConfigError if munge does not work here, or if callers would not believe this process.
    """

    def __init__(self, socket: str, user: str, clock: Callable[[], float] = time.time) -> None:
        self._socket = socket
        self._clock = clock
        # From the earliest moment at which a credential is valid, by the clock of its host, to the latest.
        self._nonces = Nonces(2 * TTL_S + 1)
        try:
            munge.encode(b"", socket=socket)
            uid = proofs.uid_of(user)
        except MungeError as error:
            raise ConfigError(f'[api] auth = "munge": {error}') from None
        if uid != os.geteuid():
            raise ConfigError(
                f"callers on other hosts believe {user} only, and this daemon runs as uid {os.geteuid()}: "
                "set [daemon] user to whom it runs as"
            )

    def open(self, credential: str, address: str, method: str, target: str) -> tuple[int, RequestCredential]:
        """Return the uid that made a request's credential, and what it is bound to; the body is yet to be read.

        `address` is this end of the connection. Raises MungeError.
        """
        opened = munge.decode(credential, socket=self._socket)
        claim = RequestCredential.of(opened.payload)
        if not _NONCE.fullmatch(claim.nonce):  # it is remembered: a long one would fill the memory
            raise MungeError("the credential's number must be 32 hexadecimal digits")
        if opened.ttl_s > TTL_S:
            raise MungeError(f"the credential is good for {opened.ttl_s} s, at most {TTL_S} s are accepted")
        if claim.address != address:
            raise MungeError(f"the credential is for the daemon at {claim.address}, this one is at {address}")
        if (claim.method, claim.target) != (method, target):
            raise MungeError(f"the credential is for {claim.method} {claim.target}, not for {method} {target}")
        return opened.uid, claim

    def accept(self, uid: int, claim: RequestCredential, body: bytes) -> None:
        """Accept a request once its body has come; raises MungeError if it is another body or the nonce is used."""
        if claim.body != proofs.digest(body):
            raise MungeError("the credential is for another body")
        if not self._nonces.is_new(uid, claim.nonce, self._clock()):
            raise MungeError("the credential was used before: each is good for one request")

    def sign(self, uid: int, claim: RequestCredential, status: int, body: bytes) -> dict[str, str]:
        """Return the header that proves an answer to its caller; raises MungeError."""
        payload = proofs.answer_payload(claim.nonce, status, body)
        made = munge.encode(payload, to_uid=uid, ttl_s=TTL_S, socket=self._socket)
        return {proofs.ANSWER_HEADER: proofs.SCHEME + made}
