"""Nodes whose workers only fetch a state from a driver, as after a resize: python -m benchmarks.checkpoints.clients

Each rank is a process with a worker's real link: it asks for the checkpoint, and has it shared on its node as workers
do. Nothing is trained, and torch is not imported. All nodes share this machine's cores: each of them has to check what
it downloaded, which real ones do at the same time.

Commands come on standard input and answers go to standard output, a JSON object a line:

    begin     the driver's address and secret, leases to be agents of, a folder for what nodes keep
    save      bytes: one rank saves so many; answered when they can be downloaded
    download  leases and ranks a node; answered with the seconds until the last rank has it
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO

from benchmarks.drivers.lines import Program, peak_bytes
from elastic.link.channel import BlockingChannel
from elastic.worker.driver_link import DriverLink, PendingCheckpoint

_PIECE_BYTES = 8 << 20
_LOOK_S = 0.05


class Nodes:
    """The agents, and the ranks that are forked for each command."""

    def __init__(self, command: dict[str, Any]) -> None:
        self._driver = {"BFT_DRIVER": str(command["address"]), "BFT_SECRET": str(command["secret"])}
        self._folder = Path(command["folder"])
        for lease in command["leases"]:
            about = {"role": "agent", "lease": lease, "node": lease, "job_id": "", "pid": os.getpid()}
            channel = BlockingChannel.connect(self._driver["BFT_DRIVER"], self._driver["BFT_SECRET"], about)
            threading.Thread(target=_beat, args=(channel,), daemon=True).start()

    def save(self, lease: str, size_bytes: int) -> float:
        """Seconds until so many bytes can be downloaded, and were."""
        piece = os.urandom(_PIECE_BYTES)

        def write(file: BinaryIO) -> None:
            for start in range(0, size_bytes, _PIECE_BYTES):
                file.write(piece[: size_bytes - start])

        def body(session: DriverLink) -> int:
            session.commit(PendingCheckpoint(1, 1, write))
            session.upload()
            while session.download_checkpoint().file is None:
                time.sleep(_LOOK_S)
            return size_bytes

        return self._run([(lease, 0)], body, size_bytes)

    def download(self, leases: Sequence[str], ranks: int, size_bytes: int) -> float:
        """Seconds until the last rank has the checkpoint."""
        return self._run([(lease, rank) for lease in leases for rank in range(ranks)], _downloaded, size_bytes)

    def _run(self, who: Sequence[tuple[str, int]], body: Callable[[DriverLink], int], size_bytes: int) -> float:
        shutil.rmtree(self._folder, ignore_errors=True)
        for lease, _ in who:
            (self._folder / lease).mkdir(parents=True, exist_ok=True)
        ready, ready_in = os.pipe()
        go, go_in = os.pipe()
        children = [self._fork(lease, rank, body, size_bytes, (ready_in, go, go_in)) for lease, rank in who]
        for _ in children:
            os.read(ready, 1)
        began_s = time.monotonic()
        os.close(go_in)
        codes = [os.waitpid(child, 0)[1] for child in children]
        took_s = time.monotonic() - began_s
        for pipe in (ready, ready_in, go):
            os.close(pipe)
        if any(codes):
            raise SystemExit(f"checkpoints.clients: {sum(map(bool, codes))} of {len(codes)} ranks failed")
        return took_s

    def _fork(
        self, lease: str, rank: int, body: Callable[[DriverLink], int], size_bytes: int, pipes: tuple[int, int, int]
    ) -> int:
        ready_in, go, go_in = pipes
        child = os.fork()
        if child:
            return child
        code = 1
        try:
            os.close(go_in)
            folder = str(self._folder / lease)
            own = {"BFT_LEASE": lease, "BFT_LOCAL_RANK": str(rank), "TMPDIR": folder}
            session = DriverLink.connect({**self._driver, **own}, None)
            os.write(ready_in, b".")
            os.read(go, 1)
            code = 0 if body(session) == size_bytes else 1
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
        raise AssertionError


def _downloaded(session: DriverLink) -> int:
    """Downloads the checkpoint; its bytes. They lie on the node then, and reading them is each node's own affair."""
    file = session.download_checkpoint().file
    if file is None:
        raise SystemExit("checkpoints.clients: the driver has no checkpoint")
    return file.seek(0, os.SEEK_END)


def _beat(channel: BlockingChannel) -> None:
    """An agent that is there and starts nothing."""
    while (message := channel.receive()) is not None:
        if message["op"] == "beat":
            with contextlib.suppress(OSError):
                channel.send(message)


def measure(nodes: int, ranks: int, size_bytes: int, repeats: int, log: Callable[[str], None]) -> dict[str, Any]:
    """The seconds that all ranks of one node take, and those of all nodes, one after the other in each repetition.

    Each has a driver of its own: one whose nodes are not warm after two minutes gives them back.
    """
    runs = []
    for number in range(repeats):
        runs.append(once(nodes, ranks, size_bytes))
        log(f"{number + 1} of {repeats}: one node {runs[-1]['one']:.2f} s, {nodes} nodes {runs[-1]['all']:.2f} s")
    found: dict[str, Any] = ratios([run["one"] for run in runs], [run["all"] for run in runs])
    return found | {
        "samples": runs,
        "saved and downloaded once s": median(run["saved"] for run in runs),
        "driver's memory MB": max(r["MB"] for r in runs),
    }


def once(nodes: int, ranks: int, size_bytes: int) -> dict[str, float]:
    """One driver, one checkpoint, both downloads; seconds, and the driver's most memory in MB."""
    with tempfile.TemporaryDirectory(prefix="bft-checkpoints-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "train.py").write_text("raise SystemExit('nobody runs this')\n")
        driver = Program("benchmarks.drivers.process", folder / "driver.log")
        stack.callback(lambda: driver.end(do="end"))
        spec = f"{nodes}-{nodes},backend=torchrun"
        told = {"folder": name, "elastic": spec, "backend": "torchrun", "script": str(folder / "train.py")}
        begun = driver.ask(do="begin", real=[], workers=ranks, **told)
        leases = list(driver.ask(do="grant", nodes=[f"n{number}" for number in range(nodes)])["leases"].values())
        clients = Program("benchmarks.checkpoints.clients", folder / "clients.log")
        stack.callback(clients.end)
        clients.ask(
            do="begin", address=begun["address"], secret=begun["secret"], leases=leases, folder=str(folder / "nodes")
        )
        found = {"saved": clients.ask(do="save", lease=leases[0], bytes=size_bytes)["took_s"]}
        for what, those in (("one", leases[:1]), ("all", leases)):
            found[what] = clients.ask(do="download", leases=those, ranks=ranks, bytes=size_bytes)["took_s"]
        return found | {"MB": peak_bytes(driver.pid) / 1e6}


def ratios(one: Sequence[float], many: Sequence[float]) -> dict[str, float]:
    """Medians of both, and of how many times as long the second takes, by pairs."""
    return {
        "one node s": median(one),
        "all nodes s": median(many),
        "all nodes / one node": median(theirs / its for its, theirs in zip(one, many, strict=True)),
    }


def main() -> None:
    """Serves until standard input ends."""
    nodes: Nodes | None = None
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "begin":
            nodes = Nodes(command)
            print("{}", flush=True)
            continue
        assert nodes is not None
        if command["do"] == "save":
            took_s = nodes.save(command["lease"], command["bytes"])
        else:
            took_s = nodes.download(command["leases"], command["ranks"], command["bytes"])
        print(json.dumps({"took_s": took_s}), flush=True)


if __name__ == "__main__":
    main()
