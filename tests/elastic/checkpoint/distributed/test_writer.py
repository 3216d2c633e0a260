"""How several workers come to write the same checkpoints: threads stand for them, with delays drawn at random."""

from __future__ import annotations

import random
import threading
import time

import pytest

from elastic.base.errors import LinkLostError
from elastic.checkpoint.distributed.writer import Writer
from tests.support.waiting import STILL_S


class Group:
    """As many workers, with a barrier for those that write and votes of those that train."""

    def __init__(self, size: int) -> None:
        self.writing = threading.Barrier(size, timeout=STILL_S)
        self.main = threading.Barrier(size, timeout=STILL_S)
        self.votes = [(0, 0)] * size

    def vote(self, rank: int, begun: int, met: int) -> tuple[int, int]:
        self.votes[rank] = begun, met
        self.main.wait()
        found = max(each for each, _ in self.votes), min(each for _, each in self.votes)
        self.main.wait()
        return found


class Job:
    def __init__(self, number: int, written: list[int], released: list[int], pause_s: float) -> None:
        self.number, self.written, self.released, self.pause_s = number, written, released, pause_s

    def run(self) -> None:
        time.sleep(self.pause_s)
        self.written.append(self.number)

    def release(self) -> None:
        self.released.append(self.number)


@pytest.mark.parametrize("seed", range(8))
def test_all_workers_write_the_same_checkpoints_in_one_order_and_always_the_last_one(seed: int) -> None:
    size, saves = 3, 25
    group = Group(size)
    written: list[list[int]] = [[] for _ in range(size)]
    released: list[list[int]] = [[] for _ in range(size)]

    def train(rank: int) -> None:
        chance = random.Random(f"{seed} {rank}")
        writer = Writer(lambda: group.writing.wait() and None)
        for number in range(saves):
            time.sleep(chance.choice([0.0, 0.0, 0.001, 0.004]))

            def make(number: int = number) -> Job:
                assert number - len(released[rank]) <= 1, "there is memory for two checkpoints"
                time.sleep(chance.choice([0.0, 0.002]))
                return Job(number, written[rank], released[rank], chance.choice([0.0, 0.001, 0.008]))

            writer.put(lambda begun, met: group.vote(rank, begun, met), make)
        writer.drain()

    workers = [threading.Thread(target=train, args=(rank,), daemon=True) for rank in range(size)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(STILL_S)
    assert not any(worker.is_alive() for worker in workers), "they wait for each other"
    assert written[0] == written[1] == written[2] == sorted(set(written[0]))
    assert written[0][-1] == saves - 1
    assert [sorted(each) for each in released] == [list(range(saves))] * size, "each gives its memory back once"


def test_nobody_waits_for_ever_when_a_worker_is_lost() -> None:
    def together() -> None:
        raise ConnectionError("gone")

    writer = Writer(together)
    writer.put(lambda begun, met: (0, 0), lambda: Job(1, [], [], 0.0))
    writer.drain()


def test_regression_a_writer_that_had_failed_took_checkpoints_for_ever_and_wrote_none() -> None:
    class Broken(Job):
        def run(self) -> None:
            raise RuntimeError("an unforeseen one")

    writer = Writer(lambda: None)
    writer.put(lambda begun, met: (0, 0), lambda: Broken(1, [], [], 0.0))
    writer.drain()
    with pytest.raises(LinkLostError, match="an unforeseen one"):
        writer.put(lambda begun, met: (1, 1), lambda: Job(2, [], [], 0.0))
