"""Gzip files of many members."""

from __future__ import annotations

import gzip
import time

from hypothesis import given
from hypothesis import strategies as st

from bftd.simulation.trace.recording.gzip_members import whole


def recorded(polls: int) -> bytes:
    """What a recorder writes in so many polls, each with a node that changed."""
    return b"".join(gzip.compress(f"{10 * poll}.003,n{poll % 997:04d},1\n".encode(), mtime=0) for poll in range(polls))


@given(st.lists(st.binary(max_size=3000), max_size=5), st.binary(max_size=20))
def test_whole_members_are_read_and_what_a_kill_cut_is_left_out(texts: list[bytes], last: bytes) -> None:
    packed = [gzip.compress(text, mtime=0) for text in texts]
    raw, cut = b"".join(packed), gzip.compress(last, mtime=0)
    assert whole(raw) == (b"".join(texts), len(raw))
    for length in range(len(cut)):
        assert whole(raw + cut[:length]) == (b"".join(texts), len(raw))


def test_a_member_longer_than_any_piece_is_read() -> None:
    text = bytes(range(256)) * 4000
    raw = gzip.compress(text, mtime=0, compresslevel=0)
    assert whole(raw + raw) == (text + text, 2 * len(raw))


def test_regression_reading_back_a_recording_takes_time_by_its_length_and_no_longer_by_its_square() -> None:
    def cpu_s(raw: bytes) -> float:
        taken = []
        for _ in range(3):
            begun_s = time.process_time()
            assert whole(raw)[1] == len(raw)
            taken.append(time.process_time() - begun_s)
        return min(taken)

    short, long = recorded(4_000), recorded(32_000)
    # by the square it were 64 times
    assert cpu_s(long) < 24 * cpu_s(short)
