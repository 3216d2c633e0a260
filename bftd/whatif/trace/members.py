"""Gzip files of many members, as a recording is: one a poll, hundreds of thousands in a few months."""

from __future__ import annotations

import zlib

# A poll's member has about a hundred bytes. What is read too far of it is copied, so a short piece is tried first.
_FIRST_PIECE = 512


def whole(raw: bytes) -> tuple[bytes, int]:
    """The text of the whole members at the beginning of `raw`, and how many bytes they take.

    The time it takes grows with the length of `raw`, however many members there are: `gzip.decompress` copies all
    that is left at each of them.
    """
    texts, end = [], 0
    view = memoryview(raw)
    while end < len(raw):
        member, text, at, piece = zlib.decompressobj(wbits=31), [], end, _FIRST_PIECE
        try:
            while not member.eof and at < len(raw):
                text.append(member.decompress(view[at : at + piece]))
                at, piece = at + piece, 2 * piece
        except zlib.error:
            break
        if not member.eof:
            break
        end = min(at, len(raw)) - len(member.unused_data)
        texts += text
    return b"".join(texts), end
