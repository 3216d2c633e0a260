"""Gzip files with many members, such as recordings: one member a poll, hundreds of thousands in a few months."""

from __future__ import annotations

import zlib

# A poll's member has about a hundred bytes. Bytes read beyond its end are copied, so a short piece is tried first.
_FIRST_PIECE = 512
# At 1,000 times its size, which is the most, a piece is unpacked to no more than this many thousands.
_MOST_PIECE = 1 << 16
MOST_BYTES = 1 << 31
"""The most text that a file is unpacked to: a year of the largest machine's polls is a quarter of it."""


def whole(raw: bytes) -> tuple[bytes, int]:
    """Return the text of the complete members at the beginning of `raw`, and the number of bytes they take.

    The time taken is linear in the length of `raw`, whatever the number of members. `gzip.decompress` instead copies
    all remaining bytes at each member. Raise OverflowError for text of more than MOST_BYTES.
    """
    texts, end, size_bytes = [], 0, 0
    view = memoryview(raw)
    while end < len(raw):
        member, text, at, piece = zlib.decompressobj(wbits=31), [], end, _FIRST_PIECE
        try:
            while not member.eof and at < len(raw):
                text.append(member.decompress(view[at : at + piece]))
                size_bytes += len(text[-1])
                if size_bytes > MOST_BYTES:
                    raise OverflowError(size_bytes)
                at, piece = at + piece, min(2 * piece, _MOST_PIECE)
        except zlib.error:
            break
        if not member.eof:
            break
        end = min(at, len(raw)) - len(member.unused_data)
        texts += text
    return b"".join(texts), end
