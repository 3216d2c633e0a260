"""A process that trains by sleeping, and logs what it does: of the standard library only, as no other is found.

`rigid` trains alone. As the Python of an elastic script it is torchrun's store or a member of a trainer's group, as the
driver says. It is copied into the folder that has its settings; there each process has a log: `spell GROUP SIZE` as it
begins to train, then a line for each `step` and `save`, and `stop` when the driver has asked it to, each after the
time.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

FOLDER = os.path.dirname(os.path.abspath(__file__))


def settings() -> dict[str, Any]:
    """The costs of training, and the number of trainings for processes that train alone."""
    with open(f"{FOLDER}/training.json") as file:
        found: dict[str, Any] = json.load(file)
    return found


class Log:
    """The log of this process."""

    def __init__(self) -> None:
        path = f"{FOLDER}/spells/{os.getpid()}-{os.environ['SLURM_JOB_ID']}"
        self._file = open(path, "w", buffering=1)  # noqa: SIM115 (to the end of the process)

    def write(self, *words: object) -> None:
        """Add a line."""
        print(f"{time.time():.3f}", *words, file=self._file)


def claim(trainings: int) -> tuple[int, int]:
    """A training that nobody else runs, with the descriptor of its checkpoint, locked until this process ends."""
    first = int(os.environ["SLURM_JOB_ID"])
    for number in (place % trainings for place in range(first, first + trainings)):
        checkpoint = os.open(f"{FOLDER}/checkpoints/{number}", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(checkpoint, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(checkpoint)
            continue
        return number, checkpoint
    sys.exit("every training is running")


def rigid() -> None:
    """Go on with a training from its checkpoint, on one node, until Slurm ends this."""
    costs, log = settings(), Log()
    number, checkpoint = claim(costs["trainings"])
    time.sleep(costs["start_s"])
    step = int(os.pread(checkpoint, 12, 0) or 0)
    log.write("spell", f"{number}@{os.getpid()}", 1)
    done = 0
    while True:
        time.sleep(costs["step_s"])
        log.write("step")
        done += 1
        if done % costs["save_every"] == 0:
            time.sleep(costs["checkpoint_s"])
            os.pwrite(checkpoint, b"%12d" % (step + done), 0)  # at once: Slurm may end this at any moment
            log.write("save")


def store() -> None:
    """Answer as torchrun's store beside the driver does."""
    print('{"op":"ready"}', flush=True)
    for line in sys.stdin:
        print(json.dumps({"op": "opened", "generation": json.loads(line)["generation"], "port": 1}), flush=True)


class Driver:
    """The driver of the trainer, which decides its members."""

    def __init__(self, descriptor: int) -> None:
        self._link = socket.socket(fileno=descriptor)
        self._received = b""

    def send(self, **message: object) -> None:
        """Tell it something."""
        self._link.sendall(json.dumps(message).encode() + b"\n")

    def message(self, wait_s: float | None) -> dict[str, Any] | None:
        """Return its next message; None if there is none for so long."""
        until_s = None if wait_s is None else time.monotonic() + wait_s
        while b"\n" not in self._received:
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            if not select.select([self._link], [], [], left_s)[0]:
                return None
            part = self._link.recv(65536)
            if not part:
                sys.exit()
            self._received += part
        line, _, self._received = self._received.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found


def member(descriptor: int) -> None:
    """Train in each group that the driver makes."""
    # Its agent ends it when Slurm wants the node.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    costs, log, driver = settings(), Log(), Driver(descriptor)
    time.sleep(costs["start_s"])
    driver.send(op="ready")
    training, done, next_s = False, 0, 0.0
    while True:
        message = driver.message(max(0.0, next_s - time.monotonic()) if training else None)
        if message is None:
            log.write("step")
            done += 1
            if done % costs["save_every"] == 0:
                time.sleep(costs["checkpoint_s"])
                log.write("save")
            next_s = time.monotonic() + costs["step_s"]
        elif message["op"] in ("join", "regroup"):
            if training:
                log.write("stop")
                time.sleep(costs["checkpoint_s"])
            training = False
            driver.send(op="join", generation=-1)
        elif message["op"] == "rendezvous":
            log.write("spell", f"{os.environ['BFT_TRAINER']}@{message['generation']}", message["nodes"])
            training, done = True, 0
            next_s = time.monotonic() + costs["regroup_s"] + costs["step_s"]


if __name__ == "__main__":
    if sys.argv[1:] == ["rigid"]:
        rigid()
    elif sys.argv[2] == "elastic.backends.torchrun.store":
        store()
    else:
        member(int(sys.argv[4]))
