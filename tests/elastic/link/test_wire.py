"""Messages between driver, agents and workers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.base.errors import WireError
from elastic.link.wire import MAX_LINE_BYTES, decode, encode, receive
from elastic.node.link import AgentLink

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
messages = st.dictionaries(st.text(), values, max_size=4).flatmap(
    lambda fields: st.text().map(lambda op: {**fields, "op": op})
)


@given(messages)
def test_a_message_is_one_line_and_comes_back_the_same(message: dict[str, Any]) -> None:
    line = encode(message)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode(line) == message


@given(st.binary())
def test_any_bytes_are_a_message_or_a_wire_error(line: bytes) -> None:
    with contextlib.suppress(WireError):
        assert isinstance(decode(line)["op"], str)


@pytest.mark.parametrize("line", [b"", b"[]", b"{}", b'{"op":1}', b"null", b"{", b"\xff", b"[" * 200_000])
def test_what_is_not_a_message_is_a_wire_error(line: bytes) -> None:
    with pytest.raises(WireError):
        decode(line)


def fed(*chunks: bytes, limit: int = MAX_LINE_BYTES) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=limit)
    for chunk in chunks:
        reader.feed_data(chunk)
    reader.feed_eof()
    return reader


async def test_messages_come_one_by_one_and_a_half_line_is_the_end() -> None:
    reader = fed(b'{"op":"a"}\n{"op"', b':"b"}\n{"op":"half"')
    assert await receive(reader) == {"op": "a"}
    assert await receive(reader) == {"op": "b"}
    assert await receive(reader) is None


async def test_an_endless_line_is_refused_instead_of_kept() -> None:
    with pytest.raises(WireError, match="longer than"):
        await receive(fed(b"x" * 5000, limit=1000))


def test_a_node_process_reads_all_messages_of_one_packet_and_learns_of_the_agents_end() -> None:
    one, other = socket.socketpair()
    link = AgentLink(other.detach())
    assert link.poll() is None
    one.sendall(b'{"op":"a"}\n{"op":"b"}\n{"op":')
    assert [link.poll(5), link.poll(), link.poll()] == [{"op": "a"}, {"op": "b"}, None]
    one.sendall(b'"c"}\n')
    assert link.poll(None) == {"op": "c"}
    link.send({"op": "ready"})
    assert one.recv(100) == b'{"op":"ready"}\n'
    one.close()
    with pytest.raises(EOFError):
        link.poll(5)
    link.close_in_child()
