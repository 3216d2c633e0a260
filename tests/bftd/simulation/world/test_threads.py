"""Threads and blocking sockets of simulated processes: they wait for one another, for time and for the network."""

from __future__ import annotations

import asyncio
import os
import queue
import socket
import threading
import time
from collections.abc import Callable
from random import Random
from typing import Any, cast

import pytest

from bftd.simulation.world import world
from bftd.simulation.world.machine.fibers import _Stack
from bftd.simulation.world.machine.loop import simulated
from bftd.simulation.world.machine.network import End
from bftd.simulation.world.machine.processes import Process, exit_here
from bftd.simulation.world.machine.sockets import NetworkLoop, Socket
from bftd.simulation.world.world import WorldSettings

pytestmark = pytest.mark.slow

SERVER = ("other", 1)


class It:
    """A process, what its threads share, and what they have said."""

    def __init__(self) -> None:
        self.process = Process("it", "host", pid=7)
        self.said: list[Any] = []
        self.lock, self.event = threading.Lock(), threading.Event()
        self.items: queue.SimpleQueue[int] = queue.SimpleQueue()

    def run(self, work: Callable[[It], None]) -> None:
        self.process.run(threading.Thread(target=work, args=(self,)).start)

    def connected(self) -> Socket:
        return cast(Socket, socket.create_connection(SERVER, 8.0))


def lived(
    *works: Callable[[It], None],
    server: Callable[[Socket], None] = lambda sock: time.sleep(50.0),
    act: Callable[[It], None] = lambda it: None,
) -> It:
    """A process with a thread for each work, after 100 seconds; after 5 something may happen to it."""
    loop = NetworkLoop(Random(1))

    def serve(end: End) -> None:
        sock = Socket(end)
        sock.setblocking(True)
        threading.Thread(target=server, args=(sock,)).start()

    async def live() -> It:
        it = It()
        Process("server", SERVER[0]).run(loop.network.listen, SERVER, serve)
        for work in works:
            it.run(work)
        await asyncio.sleep(5.0)
        act(it)
        await asyncio.sleep(95.0)
        return it

    with simulated(loop):
        it = loop.run_until_complete(live())
        loop.shut()
    return it


def now_s() -> int:
    return round(time.monotonic()) - 1000


def test_threads_wait_for_one_another_with_and_without_a_time_limit() -> None:
    def one(it: It) -> None:
        it.said += [it.event.wait(2.0), now_s(), it.event.wait(20.0), now_s()]
        it.items.put(1)

    def other(it: It) -> None:
        time.sleep(10.0)
        it.event.set()
        it.said.append(it.items.get())
        with pytest.raises(queue.Empty):
            it.items.get(timeout=3.0)
        it.said.append(now_s())

    assert lived(one, other).said == [False, 2, True, 10, 1, 13]


def test_a_lock_that_is_held_is_waited_for_as_long_as_is_wanted() -> None:
    def holds(it: It) -> None:
        with it.lock:
            time.sleep(10.0)

    def wants(it: It) -> None:
        it.said += [it.lock.acquire(blocking=False), it.lock.acquire(timeout=3.0), now_s()]
        with it.lock:
            it.said.append(now_s())

    assert lived(holds, wants).said == [False, False, 3, 10]


def test_a_killed_process_says_no_last_words_and_its_threads_are_used_again() -> None:
    def waits(it: It) -> None:
        it.said.append(os.getpid())
        try:
            time.sleep(50.0)
            it.said.append("on")
        finally:
            time.sleep(1.0)
            it.said.append("last words")

    def kill(it: It) -> None:
        it.process.kill()
        left.append(len(_Stack.idle))

    left: list[int] = []
    lived(*[waits] * 5, act=kill)
    assert lived(*[waits] * 5, act=kill).said == [7] * 5
    assert len(_Stack.idle) == left[0] + 5 == left[1] + 5


def test_a_thread_that_ends_its_process_ends_the_others_too() -> None:
    def waits(it: It) -> None:
        time.sleep(50.0)
        it.said.append("on")

    def ends(it: It) -> None:
        time.sleep(6.0)
        exit_here(3)

    it = lived(waits, ends)
    assert (it.said, it.process.rc, it.process.dead) == ([], 3, True)


def test_a_world_leaves_all_threads_to_the_next_one_and_uses_few() -> None:
    settings = WorldSettings(seed=8, hours=0.1, nodes=3, trainers=1, steps=30, faults=("agent",), apart_s=30.0)
    _Stack.idle.clear()
    assert not world.run(settings).violation
    before = list(_Stack.idle)
    assert len(before) < 25
    assert not world.run(settings).violation
    assert set(_Stack.idle) == set(before)


# -- sockets ---


def test_a_thread_reads_what_another_host_sends_line_by_line() -> None:
    def reads(it: It) -> None:
        sock = it.connected()
        file, view = sock.makefile("rb"), memoryview(bytearray(4))
        it.said += [file.readline(100), file.readline(3), sock.getpeername()]
        it.said += [bytes(view[: file.readinto1(view)]), file.readline(100), file.readline(100)]

    def sends(sock: Socket) -> None:
        sock.sendall(b"a line\nanother ")
        time.sleep(1.0)
        sock.sendall(b"one")
        sock.close()

    assert lived(reads, server=sends).said == [b"a line\n", b"ano", SERVER, b"ther", b" one", b""]


def test_a_thread_waits_for_an_answer_no_longer_than_it_may() -> None:
    def reads(it: It) -> None:
        with pytest.raises(TimeoutError):
            it.connected().recv(10)
        it.said.append(now_s())

    assert lived(reads).said == [8]


def test_a_stopped_process_sees_what_has_come_before_it_sees_the_time() -> None:
    def reads(it: It) -> None:
        it.said += [it.connected().recv(10), now_s()]

    def sends(sock: Socket) -> None:
        time.sleep(7.0)
        sock.sendall(b"in time")

    def stop(it: It) -> None:
        it.process.stop()
        asyncio.get_running_loop().call_later(25.0, it.process.go_on)

    assert lived(reads, server=sends, act=stop).said == [b"in time", 30]


def test_a_connection_that_the_own_process_ends_wakes_the_thread_that_reads() -> None:
    def reads(it: It) -> None:
        sock = it.connected()
        sock.settimeout(None)
        it.run(lambda it: it.said.append(sock.recv(10)))
        time.sleep(1.0)
        sock.shutdown(socket.SHUT_RDWR)
        with pytest.raises(BrokenPipeError):
            sock.sendall(b"more")

    assert lived(reads).said == [b""]


def test_what_is_sent_to_an_end_that_is_gone_is_an_error_from_then_on() -> None:
    def sends(it: It) -> None:
        sock = it.connected()
        time.sleep(1.0)
        sock.sendall(b"nobody knows yet that this is lost")
        time.sleep(1.0)
        with pytest.raises(ConnectionResetError):
            sock.sendall(b"more")
        it.said.append("told")

    assert lived(sends, server=lambda sock: sock.close()).said == ["told"]


def test_a_host_that_is_cut_off_is_not_waited_for_longer_than_wanted() -> None:
    def connects(it: It) -> None:
        time.sleep(6.0)
        with pytest.raises(TimeoutError):
            it.connected()
        it.said.append(now_s())

    def cut(it: It) -> None:
        cast(NetworkLoop, asyncio.get_running_loop()).network.cuts.add(frozenset({"host", SERVER[0]}))

    assert lived(connects, act=cut).said == [14]
