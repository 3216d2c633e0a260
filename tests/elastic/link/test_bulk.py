"""Checkpoints on connections of their own: what is written arrives, and what is cut short or altered never counts."""

from __future__ import annotations

import hashlib
import io
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elastic.base.errors import WireError
from elastic.base.timing import CHECKPOINT_STALL_S
from elastic.link.bulk import LEAST_BYTES, AlteredError, Incoming, PieceWriter, receive_file, send_file
from elastic.link.channel import BlockingChannel
from elastic.link.wire import CHUNK_BYTES
from tests.elastic.fakes import channels
from tests.support.messages import pattern
from tests.support.waiting import STILL_S


@contextmanager
def connection() -> Iterator[tuple[BlockingChannel, BlockingChannel, ThreadPoolExecutor]]:
    """The driver's end, the worker's, and threads for what blocks."""
    driver, worker = channels()
    with ThreadPoolExecutor() as pool:
        try:
            yield driver, worker, pool
        finally:
            for end in (driver, worker):
                end.hang_up()
                end.close()


def read(incoming: Incoming) -> bytes:
    return b"".join(map(bytes, incoming.pieces()))


SIZES = st.sampled_from([0, 1, 7, 4096, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 5])


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(0, 100) | SIZES, max_size=12), data=st.data())
def test_whatever_is_written_in_whatever_portions_is_what_comes(sizes: list[int], data: st.DataObject) -> None:
    portions = [data.draw(st.sampled_from(b"abcdefgh")).to_bytes(1, "big") * size for size in sizes]
    whole, moved = b"".join(portions), list[int]()
    with connection() as (driver, worker, pool):
        incoming = Incoming(driver)
        reading = pool.submit(read, incoming)
        writer = PieceWriter(worker, moved.append)
        for portion in portions:
            assert writer.write(portion) == len(portion)
        digest = writer.whole()
        assert reading.result(STILL_S) == whole
        assert (incoming.size_bytes, incoming.digest, digest) == (len(whole), *[hashlib.sha256(whole).hexdigest()] * 2)
        assert moved == sorted(moved)
        assert moved[-1:] == [len(whole)] * bool(whole)


@settings(max_examples=60, deadline=None)
@example(content=b"\0", where=0.421875, how=False)  # the space behind a seal was looked at by nobody
@given(content=st.binary(min_size=1, max_size=300), where=st.floats(0, 1, exclude_max=True), how=st.booleans())
def test_a_checkpoint_that_is_cut_or_altered_anywhere_never_counts_as_whole(
    content: bytes, where: float, how: bool
) -> None:
    """The bytes as they travel, from the first piece's length to the sealed end."""
    with connection() as (driver, worker, _):
        sent = bytearray()
        worker.send_raw = lambda *parts: sent.extend(b"".join(map(bytes, parts)))  # type: ignore[method-assign]
        writer = PieceWriter(worker)
        writer.write(content)
        writer.whole()  # the last line goes by itself
        tail = driver._file.readline()
        data = bytes(sent) + tail
        place = int(where * len(data))
        altered = data[:place] if how else data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        worker._sock.sendall(altered)
        worker.hang_up()
        incoming = Incoming(driver)
        with pytest.raises(WireError):
            read(incoming)
        assert incoming.digest == ""


def test_an_end_that_lies_about_size_or_digest_is_no_end() -> None:
    right = hashlib.sha256(b"state").hexdigest()
    for end in (
        {"op": "whole", "bytes": 4, "sha256": right},
        {"op": "whole", "bytes": 5, "sha256": "0" * 64},
        {"op": "whole", "bytes": 5, "sha256": 7},
        {"op": "whole"},
        {"op": "done"},
    ):
        with connection() as (driver, worker, _):
            worker.send_raw(struct.pack(">I", 5), b"state", struct.pack(">I", 0))
            worker.send(end)
            with pytest.raises(WireError):
                read(Incoming(driver))


def test_a_piece_longer_than_any_is_not_waited_for() -> None:
    with connection() as (driver, worker, _):
        worker.send_raw(struct.pack(">I", CHUNK_BYTES + 1), b"x")
        with pytest.raises(WireError, match=pattern("elastic.payload.chunk_too_long")):
            read(Incoming(driver))


@pytest.mark.parametrize("rate", [1, 2 * LEAST_BYTES])
def test_who_sends_a_byte_now_and_then_is_dropped_and_who_sends_slowly_is_not(rate: int) -> None:
    """`rate`: so many bytes come in CHECKPOINT_STALL_S."""
    content = bytes(8 * CHUNK_BYTES)
    with connection() as (driver, worker, pool):
        incoming = Incoming(driver, lambda: incoming.size_bytes / rate * CHECKPOINT_STALL_S)
        writer = PieceWriter(worker)
        writing = pool.submit(lambda: (writer.write(content), writer.whole()))
        if rate == 1:
            with pytest.raises(WireError, match="too slowly"):
                read(incoming)
            driver.hang_up()
            writing.exception(STILL_S)
        else:
            assert len(read(incoming)) == len(content)


def test_what_serializers_write_in_small_portions_travels_in_few_pieces() -> None:
    with connection() as (driver, worker, pool):
        pieces = 0
        real = worker.send_raw

        def counted(*parts: bytes | memoryview) -> None:
            nonlocal pieces
            pieces += 1
            real(*parts)

        worker.send_raw = counted  # type: ignore[method-assign]
        reading = pool.submit(read, Incoming(driver))
        writer = PieceWriter(worker)
        for _ in range(10_000):
            writer.write(b"header")
        writer.whole()
        assert reading.result(STILL_S) == b"header" * 10_000
        assert pieces == 2


def test_a_writer_whose_other_end_is_gone_says_that_it_is_the_connection() -> None:
    with connection() as (driver, worker, _):
        driver.hang_up()
        driver.close()
        writer = PieceWriter(worker)
        with pytest.raises(OSError):  # noqa: PT011
            writer.write(bytes(100 * CHUNK_BYTES))
        assert writer.broken is not None


@settings(max_examples=20, deadline=None)
@given(size_bytes=st.integers(1, 100) | st.sampled_from([CHUNK_BYTES, 9 * CHUNK_BYTES + 3]))
def test_a_file_is_sent_by_the_kernel_and_verified_at_the_other_end(
    tmp_path_factory: pytest.TempPathFactory, size_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("p") / "state"
    content = bytes(range(256)) * (size_bytes // 256 + 1)
    path.write_bytes(content[:size_bytes])
    about = _about(content[:size_bytes])
    got, seen = io.BytesIO(), list[int]()
    with connection() as (driver, worker, pool), path.open("rb") as file:
        receiving = pool.submit(lambda: receive_file(worker, worker.receive() or {}, got, seen.append))
        assert send_file(driver, about, file)
        receiving.result(STILL_S)
        assert got.getvalue() == content[:size_bytes]
        assert seen[-1] == size_bytes


def test_a_file_that_is_not_what_its_digest_says_is_told_to_both_ends(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"altered")
    with connection() as (driver, worker, pool), (tmp_path / "state").open("rb") as file:
        receiving = pool.submit(lambda: receive_file(worker, worker.receive() or {}, io.BytesIO()))
        assert not send_file(driver, _about(b"as it was"[:7]), file)
        with pytest.raises(AlteredError):
            receiving.result(STILL_S)


def test_regression_a_file_that_was_cut_meanwhile_was_read_for_ever(tmp_path: Path) -> None:
    (tmp_path / "state").write_bytes(b"cut")
    with connection() as (driver, _, __), (tmp_path / "state").open("rb") as file:
        with pytest.raises(OSError, match=pattern("elastic.payload.ends_early")) as caught:
            send_file(driver, _about(b"cut short"), file)
        assert not isinstance(caught.value, ConnectionError)


@pytest.mark.parametrize("size", [-1, 0, 1.5, "7", None, [], 1e3, True])
def test_a_checkpoint_of_an_impossible_size_is_refused(size: object) -> None:
    with connection() as (_, worker, __), pytest.raises(WireError):
        receive_file(worker, {"op": "sending", "bytes": size, "sha256": "0"}, io.BytesIO())


def test_two_checkpoints_at_once_do_not_mix() -> None:
    with connection() as (driver, worker, pool), connection() as (other_driver, other_worker, other_pool):
        begin = threading.Barrier(2)

        def send(to: BlockingChannel, letter: bytes) -> None:
            begin.wait(STILL_S)
            writer = PieceWriter(to)
            for _ in range(5):
                writer.write(letter * CHUNK_BYTES)
            writer.whole()

        reading = [pool.submit(read, Incoming(driver)), other_pool.submit(read, Incoming(other_driver))]
        pool.submit(send, worker, b"a")
        other_pool.submit(send, other_worker, b"b")
        assert [set(content.result(STILL_S)) for content in reading] == [{97}, {98}]


def _about(content: bytes) -> dict[str, object]:
    return {"op": "sending", "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
