"""A trainer with large checkpoints in a real driver, agent, node process and worker: what saving it costs the training.

The worker tells what it measures as JSON lines in a file: each step's time; each save's stall, and beside it one copy
of the same tensors into memory that was used before; when the state was written, and the thread's time that it took.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.drivers.lines import Program, peak_bytes

LIMIT_S = 900.0
_HASH_BYTES = 256 << 20
_WARM_STEPS = 5

SCRIPT = '''
import hashlib, json, os, sys, threading, time
began_s = time.monotonic()
import torch
import torch.distributed as dist
import elastic
from elastic.checkpoint import snapshot
from elastic.worker import driver_link as session

BYTES, EVERY_S, THREADS, OUT = {bytes}, {every_s}, {threads}, {out!r}
torch.set_num_threads(THREADS)
out = open(OUT, "a", buffering=1)

def tell(**what):
    out.write(json.dumps({{"pid": os.getpid(), "at_s": time.time(), **what}}) + "\\n")

def digest(state):
    content = hashlib.sha256()
    for tensor in tensors(state):
        content.update(tensor.numpy())
    return content.hexdigest()

def tensors(state):
    for value in state.values():
        yield from tensors(value) if isinstance(value, dict) else [value]

class Timed:
    """What goes through it is sealed, sent or kept: the rest of a write is serializing."""
    def __init__(self, file):
        self.file, self.cpu_s, self.bytes = file, 0.0, 0
    def write(self, data):
        began_s = time.thread_time()
        try:
            return self.file.write(data)
        finally:
            self.cpu_s += time.thread_time() - began_s
            self.bytes += len(data)
    def flush(self):
        self.file.flush()

write = snapshot.write
def timed(state, file, *more):
    through = Timed(file)
    tell(what="written from")
    began_s = time.thread_time()
    try:
        write(state, through, *more)
    finally:
        cpu_s = time.thread_time() - began_s
        tell(what="written", bytes=through.bytes, serialize_cpu_s=cpu_s - through.cpu_s, send_cpu_s=through.cpu_s)
snapshot.write = timed

dist.init_process_group("gloo")
loading_s = time.monotonic()
saved = elastic.load()
if saved is None:
    # a model and Adam's two moments, in layers of 16 MB and some small ones
    count = max(1, BYTES // 3 // (16 << 20))
    def layers():
        return {{f"layer{{number}}": torch.rand(BYTES // 3 // count // 4) for number in range(count)}}
    saved = {{"model": layers(), "exp_avg": layers(), "exp_avg_sq": layers(), "norm": {{"bias": torch.rand(64)}}}}
    tell(what="began")
else:
    tell(what="resumed", load_s=time.monotonic() - loading_s, digest=digest(saved))
state = saved
beside = [torch.empty_like(tensor).fill_(1) for tensor in tensors(state)]
square = torch.rand(512, 512)
value = torch.ones(1)
due_s = time.monotonic() + EVERY_S
while True:
    began_s = time.monotonic()
    for _ in range(8):
        square = torch.tanh(square @ square)
    for tensor in tensors(state):
        tensor[:64] += 1
    dist.all_reduce(value)
    tell(what="step", took_s=time.monotonic() - began_s)
    asked = elastic.step(save_every=1 << 30)
    if asked:
        tell(what="pause", digest=digest(state))
        elastic.save(state)
    elif time.monotonic() >= due_s:
        began_s = time.monotonic()
        for mine, theirs in zip(beside, tensors(state)):
            mine.copy_(theirs)
        copy_s = time.monotonic() - began_s
        began_s, cpu_s = time.monotonic(), time.process_time()
        elastic.save(state)
        tell(what="save", stall_s=time.monotonic() - began_s, cpu_s=time.process_time() - cpu_s, copy_s=copy_s)
        due_s = time.monotonic() + EVERY_S
'''


class Training:
    """The trainer, its driver, and what its worker has told."""

    def __init__(self, folder: Path, size_bytes: int, every_s: float, threads: int) -> None:
        self.out = folder / "told.jsonl"
        script = folder / "train.py"
        script.write_text(SCRIPT.format(bytes=size_bytes, every_s=every_s, threads=threads, out=str(self.out)))
        self._log = folder / "driver.log"
        self._program = Program("benchmarks.drivers.process", self._log)
        told = {"folder": str(folder), "elastic": "1-1,backend=torchrun", "backend": "torchrun", "script": str(script)}
        self._program.ask(do="begin", real=["n1"], workers=1, **told)

    def told(self) -> list[dict[str, Any]]:
        """All lines so far."""
        if not self.out.exists():
            return []
        text = self.out.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def wait(self, what: str, count: int = 1) -> list[dict[str, Any]]:
        """Waits for so many lines of one kind; ends the benchmark when they do not come."""
        deadline_s = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline_s:
            found = [line for line in self.told() if line["what"] == what]
            if len(found) >= count:
                return found
            if any(event["event"] == "over" for event in self._program.events):
                break
            time.sleep(0.2)
        raise SystemExit(
            f"checkpoints.training: no '{what}' came; the driver's last words: {self._log.read_text()[-1500:]}"
        )

    def lend(self) -> None:
        """Gives the trainer its node."""
        self._program.ask(do="grant", nodes=["n1"])

    def take(self) -> None:
        """Takes the node back, in order: the trainer is suspended."""
        self._program.ask(do="revoke", nodes=["n1"])

    def sample(self) -> dict[str, float]:
        """See `benchmarks.drivers.process`."""
        return self._program.ask(do="sample")

    @property
    def driver_bytes(self) -> int:
        """The most memory that the driver has had."""
        return peak_bytes(self._program.pid)

    def end(self) -> None:
        """Ends the trainer."""
        self._program.end(do="end")


def measure(size_bytes: int, saves: int, every_s: float, threads: int, log: Callable[[str], None]) -> dict[str, Any]:
    """One trainer that saves so often, is suspended, and goes on."""
    with tempfile.TemporaryDirectory(prefix="bft-checkpoints-") as name:
        training = Training(Path(name), size_bytes, every_s, threads)
        try:
            training.lend()
            training.wait("began")
            before = training.sample()
            written = 0
            for number in range(saves):
                training.wait("save", number + 1)
                written = len(training.wait("written", written + 1))
                log(f"save {number + 1} of {saves}: {training.told()[-1]}")
            time.sleep(max(2.0, every_s / 2))  # undisturbed steps after the last one
            after = training.sample()
            training.take()
            paused = training.wait("pause")[-1]
            suspended_s = time.monotonic()
            training.wait("written", written + 1)
            suspended_s = time.monotonic() - suspended_s
            training.lend()
            resumed = training.wait("resumed")[-1]
            training.wait("step", len(training.wait("step")) + 1)
            found = figures(training.told(), hash_rate(), saves)
            found["driver's memory, most MB"] = training.driver_bytes / 1e6
            found["driver's processor time a save s"] = (after["cpu_s"] - before["cpu_s"]) / saves
            found["workers"] = len({line["pid"] for line in training.told()})
            found["workers killed"] = found["workers"] - 2  # one before and one after the suspension
            found["suspend: checkpoint written s"] = suspended_s
            found["resume: checkpoint loaded s"] = resumed["load_s"]
            found["resumed to the bit"] = resumed["digest"] == paused["digest"]
            return found
        finally:
            training.end()


def hash_rate() -> float:
    """Bytes a second of processor time that SHA-256 takes here."""
    data, began_s = bytes(_HASH_BYTES), time.thread_time()
    hashlib.sha256(data).digest()
    return _HASH_BYTES / (time.thread_time() - began_s)


def figures(told: Sequence[dict[str, Any]], hashed_bytes_s: float, saves: int) -> dict[str, Any]:
    """What the worker's lines say: of each figure the median, or the rate.

    The first save goes to memory that was never touched, and is told apart.
    """
    all_saves = [line for line in told if line["what"] == "save"][:saves]
    later = all_saves[1:] or all_saves
    written = [line for line in told if line["what"] == "written"][:saves]
    uploads = spans(told)
    steps = [line for line in told if line["what"] == "step"][_WARM_STEPS:]
    first_pid = all_saves[0]["pid"]
    steps = [line for line in steps if line["pid"] == first_pid]
    during = [line["took_s"] for line in steps if inside(line["at_s"] - line["took_s"], line["at_s"], uploads)]
    apart = [line["took_s"] for line in steps if not touches(line["at_s"] - line["took_s"], line["at_s"], uploads)]
    seal_s = [line["bytes"] / hashed_bytes_s for line in written]
    return {
        "checkpoint MB": written[0]["bytes"] / 1e6,
        "saves": len(all_saves),
        "stall of a save s": median(line["stall_s"] for line in later),
        "one memory copy s": median(line["copy_s"] for line in later),
        "stall / memory copy": median(line["stall_s"] / line["copy_s"] for line in later),
        "stall / memory copy, most": max(line["stall_s"] / line["copy_s"] for line in later),
        "first save: stall / memory copy": all_saves[0]["stall_s"] / all_saves[0]["copy_s"],
        "upload s": median(end - begin for begin, end in uploads[:saves]),
        "steps while it is uploaded": len(during),
        "pace while it is uploaded": statistics.mean(apart) / statistics.mean(during) if during and apart else None,
        "cpu: copy s": median(line["cpu_s"] for line in later),
        "cpu: serialize s": median(line["serialize_cpu_s"] for line in written),
        "cpu: seal s": median(seal_s),
        "cpu: write s": median(max(0.0, line["send_cpu_s"] - seal) for line, seal in zip(written, seal_s, strict=True)),
        "samples": [{name: round(line[name], 4) for name in ("stall_s", "copy_s", "cpu_s")} for line in all_saves],
    }


def spans(told: Iterable[dict[str, Any]]) -> list[tuple[float, float]]:
    """From when to when a state was written, in unix seconds."""
    found: list[tuple[float, float]] = []
    begun_s: float | None = None
    for line in told:
        if line["what"] == "written from":
            begun_s = line["at_s"]
        elif line["what"] == "written" and begun_s is not None:
            found.append((begun_s, line["at_s"]))
            begun_s = None
    return found


def inside(begin_s: float, end_s: float, uploads: Sequence[tuple[float, float]]) -> bool:
    """Whether all of this time a state was uploaded."""
    return any(begin <= begin_s and end_s <= end for begin, end in uploads)


def touches(begin_s: float, end_s: float, uploads: Sequence[tuple[float, float]]) -> bool:
    """Whether a state was uploaded at any moment of this time."""
    return any(begin < end_s and begin_s < end for begin, end in uploads)


def median(values: Iterable[float]) -> float:
    """The median as a plain number."""
    return float(statistics.median(values))
