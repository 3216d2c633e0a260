"""A driver in a process of its own and a worker's session, with a checkpoint of a gigabyte between them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from elastic.worker.driver_link import DriverLink, PendingCheckpoint
from tests.elastic.fakes import SECRET

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
BLOCK = os.urandom(1 << 20)
BLOCKS = 1024

DRIVER = """
import asyncio, json, sys
from pathlib import Path
from elastic.driver import timers
from elastic.driver.pilots import manager
from elastic.driver.server import Hub, listen
from tests.elastic.fakes import SECRET, FakeDaemon, FakeStarter, lease, settings_for, trainer_for

manager.CONNECT_S = 600.0  # there is no agent
timers.PING_S = 0.1
counts = {"turns": 0, "pongs": 0}

async def main():
    trainer = trainer_for(settings_for(Path(sys.argv[1])), lambda line: None, FakeStarter(), FakeDaemon())
    connections = trainer.connections
    real = connections.received
    async def received(peer, message):
        if message["op"] == "pong":
            counts["pongs"] += 1
        await real(peer, message)
    connections.received = received
    listening = listen()
    Hub(connections, SECRET, listening, print, connections.transfers.accept)
    serving = asyncio.create_task(trainer.serve())
    trainer.pilot_manager.on_leases([lease("n1")])
    print(listening.getsockname()[1], flush=True)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    over = asyncio.create_task(reader.read())
    while not over.done():
        await asyncio.sleep(0.05)
        counts["turns"] += 1
    # ru_maxrss begins with that of the process that this one came from
    peak = int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))) << 10
    print(json.dumps({"peak_bytes": peak, "step": trainer.run.store.step, **counts}))
    sys.stdout.flush()
    trainer.run.finish(1, "the test is over")
    await serving
    await trainer.stop()

asyncio.run(main())
"""


@contextmanager
def driver(folder: Path) -> Iterator[tuple[subprocess.Popen[str], DriverLink]]:
    argv = [sys.executable, "-c", DRIVER, str(folder)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        environ = {
            "BFT_DRIVER": f"127.0.0.1:{int(process.stdout.readline())}",
            "BFT_SECRET": SECRET,
            "BFT_LEASE": "n1.1",
            "BFT_LOCAL_RANK": "0",
            "TMPDIR": str(folder),
        }
        session = DriverLink.connect(environ, None)
        try:
            yield process, session
        finally:
            session.ended(1)
            process.stdin.close()  # type: ignore[union-attr]
            process.wait()


def test_a_gigabyte_comes_and_goes_through_a_driver_that_stays_small_and_answers_meanwhile(tmp_path: Path) -> None:
    def write(file: BinaryIO) -> None:
        for _ in range(BLOCKS):
            file.write(BLOCK)

    with driver(tmp_path) as (process, session):
        session.commit(PendingCheckpoint(5, 50, write))
        session.upload_soon()
        steps = 0
        while not session._uploader.arrived:
            session.step(6, 60, 0, 1, None)
            steps += 1
            time.sleep(0.01)
        file = session.download_checkpoint().file
        assert file is not None
        with file:
            content = hashlib.sha256()
            while block := file.read(1 << 20):
                content.update(block)
        expected = hashlib.sha256()
        for _ in range(BLOCKS):
            expected.update(BLOCK)
        assert content.digest() == expected.digest()
        session.ended(1)  # else it ended this process, as it does a worker's, where the driver takes long to end
        told = json.loads(process.communicate("")[0])
    assert told["step"] == 5
    assert told["peak_bytes"] < 300 << 20, told
    # Who waited for all of it would have had one turn each way.
    assert min(told["turns"], told["pongs"], steps) > 10, (told, steps)
