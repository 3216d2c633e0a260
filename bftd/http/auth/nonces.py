"""Numbers used once, remembered for as long as a credential that carries them could be valid."""

from __future__ import annotations

from collections import OrderedDict


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
