"""A shuffled order of a dataset of any length that needs no memory: which sample stands at which place.

A Feistel network over the smallest power of four that holds the dataset, walked until it lands inside (Black and
Rogaway, Ciphers with Arbitrary Finite Domains, CT-RSA 2002). The order is the same in every release of every library
and on every machine: a trainer goes on in the middle of an epoch long after it began.
"""

from __future__ import annotations

from hashlib import blake2b

_ROUNDS = 6
_WORD = (1 << 64) - 1


class Order:
    """The order of `length` samples in one epoch of a seed; a bijection of range(length)."""

    def __init__(self, length: int, seed: int, epoch: int) -> None:
        if length < 1:
            raise ValueError(f"a dataset of {length} samples has no order")
        self._length = length
        self._half = max(1, ((length - 1).bit_length() + 1) // 2)
        self._mask = (1 << self._half) - 1
        told = blake2b(f"{length}:{seed}:{epoch}".encode(), digest_size=8 * _ROUNDS).digest()
        self._keys = [int.from_bytes(told[8 * index : 8 * index + 8], "little") for index in range(_ROUNDS)]

    def at(self, place: int) -> int:
        """The sample at a place, both from 0; raises IndexError beyond the dataset."""
        if not 0 <= place < self._length:
            raise IndexError(f"place {place} of {self._length}")
        found = self._once(place)
        while found >= self._length:
            found = self._once(found)
        return found

    def _once(self, value: int) -> int:
        left, right = value >> self._half, value & self._mask
        for key in self._keys:
            left, right = right, left ^ (_mixed(right ^ key) & self._mask)
        return left << self._half | right


def _mixed(value: int) -> int:
    """All bits of a word in each of its bits (the finalizer of splitmix64)."""
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _WORD
    return value ^ value >> 31
