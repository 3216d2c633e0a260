"""Elastic training on GPUs: stalls, a hung collective, how soon a node with much memory pinned is idle, saving.

    python -m benchmarks.gpu.training [--cpu] [--quick] [--parts LIST] [--gb GB] [--state-gb GB] [--repeats N] [--json]

Needs this tree, a Python that has torch and what bftd needs, and one GPU; no Slurm and no bftd: nodes are agents on
this host (`benchmarks.drivers.local_nodes`) that all have its GPUs. The parts:

    resize    from one worker to two and back, on one GPU with gloo (NCCL refuses two ranks on one GPU), on several
              with NCCL: how long no step ends
    hung      a worker is stopped, so that the collective hangs; then its node is taken: until the workers are gone,
              and until the other one steps again
    giveback  Slurm's SIGTERM to a node with --gb on the device and as much pinned on the host: until the agent, its
              last process and the GPU's memory are gone; the same with less, to tell what takes the time
    state     a state of --state-gb on the device: what saving holds training up for, when it is on disk, loading;
              beside plain copies and torch.save of the same state

Without a GPU it says so and runs on the CPU, as with --cpu; such figures say nothing of a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import ctypes.util
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.drivers.capacity import Driver, spread
from benchmarks.gpu import script
from benchmarks.gpu.script import GB

PARTS = ("resize", "hung", "giveback", "state")

_LIMIT_S = 180.0
_LOOK_S = 0.002
_SETTLED_S = 1.0
"""Training goes on for so long between two changes."""

_SPARE = 0.5
"""At most this share of the free memory is used."""


class Gpu:
    """The memory in use on all GPUs of this host, as the driver tells it; a process that waits for it needs no CUDA."""

    def __init__(self, count: int) -> None:
        """`count`: how many of them torch can use."""
        self.count = count
        self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if self._nvml.nvmlInit_v2() != 0:
            raise OSError("NVML does not start")
        self._handles = [ctypes.c_void_p() for _ in range(self.count)]
        for index, handle in enumerate(self._handles):
            self._nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))

    def memory(self) -> tuple[int, int]:
        """Bytes free and used, on the GPU that has least of the one and on all of them."""
        free, used = [], 0
        for handle in self._handles:
            told = (ctypes.c_ulonglong * 3)()  # total, free, used
            self._nvml.nvmlDeviceGetMemoryInfo(handle, told)
            free.append(told[1])
            used += told[2]
        return min(free), used

    def name(self) -> str:
        """What the first one is."""
        text = ctypes.create_string_buffer(96)
        self._nvml.nvmlDeviceGetName(self._handles[0], text, len(text))
        return text.value.decode()


def found_gpu() -> Gpu | str:
    """The GPUs that torch can use here; why there are none."""
    # In a process of its own: this one is to leave no trace on the GPU.
    asks = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
    said = subprocess.run([sys.executable, "-c", asks], capture_output=True, text=True, check=False)
    count = said.stdout.strip()
    if not count.isdecimal() or not int(count):
        return said.stderr.strip().rpartition("\n")[2] or "torch finds none"
    try:
        return Gpu(int(count))
    except OSError as error:
        return str(error)


class Trainer:
    """A real driver, agents on this host, and `benchmarks.gpu.script` as the script."""

    def __init__(self, folder: Path, gpu: Gpu | None, spec: str = "1-2", **told: Any) -> None:
        self.folder, self._record = folder, folder / "record"
        self._record.touch()
        self._read_bytes, self._told = 0, list[dict[str, Any]]()
        asked = {"device": "cuda" if gpu else "cpu", "record": str(self._record), "save_every": 5, "pinned": True}
        nothing = {"gb_on_device": 0.0, "gb_on_host": 0.0, "state_gb": 0.0}
        os.environ["BFT_GPU_BENCH"] = json.dumps({**asked, **nothing, **told})
        path = Path(script.__file__)
        spec = f"{spec},backend=torchrun,workers=1"
        self.driver = Driver(folder, "torchrun", spec, ["n1", "n2"], gpu.count if gpu else 1, path)

    def lines(self, did: str, since_s: float = 0.0, **fields: Any) -> list[dict[str, Any]]:
        """What workers wrote of one kind, the oldest first."""
        with self._record.open("rb") as record:
            record.seek(self._read_bytes)
            for line in record:
                if not line.endswith(b"\n"):  # the rest of it is still to come
                    break
                self._read_bytes += len(line)
                self._told.append(json.loads(line))
        wanted = {"did": did, **fields}
        return [line for line in self._told if line["at_s"] > since_s and wanted.items() <= line.items()]

    def wait(self, did: str, since_s: float = 0.0, count: int = 1, **fields: Any) -> dict[str, Any]:
        """The first such line since then, once there are `count` of them."""

        def found() -> dict[str, Any] | None:
            lines = self.lines(did, since_s, **fields)
            return lines[count - 1] if len(lines) >= count else None

        line = until(found, f"{did} {fields}", self.folder / "driver.log")
        assert line is not None
        return line

    def agent(self, node: str) -> psutil.Process:
        """The agent of a node."""
        return next(agent for agent in self.driver.agents if agent.environ()["SLURMD_NODENAME"] == node)


@contextlib.contextmanager
def trainer(gpu: Gpu | None, **told: Any) -> Iterator[Trainer]:
    """A trainer without nodes, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="bft-gpu-") as name:
        running = Trainer(Path(name), gpu, **told)
        try:
            yield running
        finally:
            running.driver.end()


def until(found: Callable[[], Any], what: str, log: Path | None = None) -> Any:
    """What `found` returns, as soon as that is something."""
    deadline_s = time.monotonic() + _LIMIT_S
    while not (seen := found()):
        if time.monotonic() > deadline_s:
            words = f"; the driver's last words: {log.read_text()[-1000:]}" if log else ""
            raise SystemExit(f"gpu.training: never: {what}{words}")
        time.sleep(_LOOK_S)
    return seen


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that waits to be reaped holds no memory and no GPU any more."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def resize(gpu: Gpu | None, _: argparse.Namespace) -> dict[str, float]:
    """How long no step ends as a worker comes, and as it goes."""
    with trainer(gpu) as running:
        running.driver.grant(["n1"])
        running.wait("step", size=1, count=10)
        running.driver.grant(["n2"])
        grown = running.wait("step", size=2)
        # Told together, and the last one of the old group is heard of before: the stall is what rank 0 sees.
        alone = running.lines("step", size=1, rank=0)[-1]
        time.sleep(_SETTLED_S)
        asked_s = time.time()
        running.driver.revoke(["n2"])
        shrunk = running.wait("step", since_s=asked_s, size=1)
        before = [line for line in running.lines("step", size=2) if line["at_s"] < shrunk["at_s"]][-1]
        return {
            "grow: no step for s": grown["at_s"] - alone["at_s"],
            "shrink: no step for s": shrunk["at_s"] - before["at_s"],
        }


def hung(gpu: Gpu | None, _: argparse.Namespace) -> dict[str, float]:
    """A collective that hangs is left when the node of its silent peer is taken."""
    with trainer(gpu) as running:
        running.driver.grant(["n1", "n2"])
        running.wait("step", size=2, count=20)
        agent = running.agent("n2")
        workers = {int(line["pid"]) for line in running.lines("step", size=2)[-2:]}
        (stopped,) = workers & {child.pid for child in agent.children(recursive=True)}
        (waiting,) = workers - {stopped}
        os.kill(stopped, signal.SIGSTOP)
        time.sleep(_SETTLED_S)
        ordered_s = time.time()
        agent.kill()
        gone: dict[int, float] = {}

        def both() -> bool:
            for pid in {stopped, waiting} - gone.keys():
                if is_gone(pid):
                    gone[pid] = time.time()
            return len(gone) == 2

        until(both, "the workers of the hung collective are gone")
        stepped = running.wait("step", since_s=ordered_s, size=1)
        return {
            "stopped worker gone after s": gone[stopped] - ordered_s,
            "hung worker gone after s": gone[waiting] - ordered_s,
            "next step after s": stepped["at_s"] - ordered_s,
        }


def giveback(gpu: Gpu | None, options: argparse.Namespace) -> dict[str, float]:
    """From Slurm's notice to an idle node, by what the worker holds."""
    gb = min(options.gb, _SPARE * psutil.virtual_memory().available / GB)
    on_device = min(options.gb, _SPARE * gpu.memory()[0] / GB) if gpu else 0.0
    found = {"GB on the host": gb, "GB on the device": on_device}
    holds = {"nothing": (0.0, 0.0, False), "host memory": (gb, 0.0, False)}
    if gpu is not None:
        holds |= {"pinned": (gb, 0.0, True), "device": (0.0, on_device, True), "both": (gb, on_device, True)}
    for what, (host, device, pinned) in holds.items():
        for name, took_s in _given_back(gpu, gb_on_host=host, gb_on_device=device, pinned=pinned).items():
            found[f"{what}: {name} s"] = took_s
    return found


def _given_back(gpu: Gpu | None, **holds: Any) -> dict[str, float]:
    before = gpu.memory()[1] if gpu else 0
    with trainer(gpu, spec="1-1", **holds) as running:
        running.driver.grant(["n1"])
        running.wait("step", count=5)
        agent = running.agent("n1")
        pids = [agent.pid, *(child.pid for child in agent.children(recursive=True))]
        noticed_s = time.time()
        agent.send_signal(signal.SIGTERM)
        until(lambda: is_gone(agent.pid), "the agent is gone")
        found = {"agent gone after": time.time() - noticed_s}
        until(lambda: all(is_gone(pid) for pid in pids), "the last process is gone")
        found["last process gone after"] = time.time() - noticed_s
        if gpu is not None:
            until(lambda: gpu.memory()[1] <= before + 64 * 2**20, "the GPU's memory is free")
            found["GPU free after"] = time.time() - noticed_s
        return found


def state(gpu: Gpu | None, options: argparse.Namespace) -> dict[str, float]:
    """Saving and loading beside plain copies of the same state; distributed too, where this tree can."""
    found = _state(gpu, options.state_gb, "1-1")
    if importlib.util.find_spec("elastic.checkpoint.distributed") is not None:
        with tempfile.TemporaryDirectory(prefix="bft-gpu-path-") as folder:
            distributed = _state(gpu, options.state_gb, f"1-1,state={folder}")
        found |= {f"distributed: {name}": figure for name, figure in distributed.items() if name.startswith("bftd")}
    return found


def _state(gpu: Gpu | None, gb: float, spec: str) -> dict[str, float]:
    with trainer(gpu, spec=spec, state_gb=gb, save_every=20) as running:
        running.driver.grant(["n1"])
        copies = running.wait("copies")
        first = running.wait("save", count=2)
        found = {"state GB": gb}
        for name in ("allocate", "copy", "back", "write", "read"):
            found[f"plain: {name} GB/s"] = gb / copies[f"{name}_s"]
        found["bftd: save holds up for, in copies"] = first["took_s"] / copies["copy_s"]
        if "state=" not in spec:
            # The record is of the end of the call, whose beginning is what counts.
            began_s = running.lines("save")[0]["at_s"] - running.lines("save")[0]["took_s"]
            kept = until(lambda: list((running.folder / "state").rglob("state-*.pt")), "a state is on disk")
            found["bftd: saved to disk GB/s"] = gb / (kept[0].stat().st_mtime - began_s)
        running.driver.revoke(["n1"])
        running.driver.grant(["n2"])
        loaded = running.wait("load")
        found["bftd: load GB/s"] = gb / loaded["took_s"]
        return found


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All parts that were asked for."""
    gpu = "--cpu was asked for" if options.cpu else found_gpu()
    found: dict[str, Any] = {"device": f"{gpu.count} x {gpu.name()}" if isinstance(gpu, Gpu) else f"CPU: {gpu}"}
    if isinstance(gpu, str) and not options.cpu:
        print(f"gpu.training: no GPU here ({gpu}): the figures are the CPU's", file=sys.stderr, flush=True)
    root = str(Path(__file__).resolve().parents[2])
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    device = gpu if isinstance(gpu, Gpu) else None
    for name in options.parts:
        runs = []
        for _ in range(options.repeats):
            runs.append({"resize": resize, "hung": hung, "giveback": giveback, "state": state}[name](device, options))
            print(f"{name}: {json.dumps(runs[-1])}", file=sys.stderr, flush=True)
        found[name] = spread(runs)
    return found


def _parts(text: str) -> list[str]:
    parts = text.split(",")
    if unknown := set(parts) - set(PARTS):
        raise argparse.ArgumentTypeError(f"there is no part {min(unknown)!r}; there are {', '.join(PARTS)}")
    return parts


def main(words: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.training", description=__doc__.splitlines()[0])
    parser.add_argument("--cpu", action="store_true", help="on the CPU, to see that the benchmark works")
    parser.add_argument("--quick", action="store_true", help="once, with small sizes")
    parser.add_argument("--parts", type=_parts, default=list(PARTS), help=f"of {','.join(PARTS)}")
    parser.add_argument("--gb", type=float, default=60.0, help="held on the device and pinned on the host")
    parser.add_argument("--state-gb", type=float, default=4.0, help="the size of the state that is saved")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    if options.quick:
        options.gb, options.state_gb, options.repeats = 0.1, 0.05, 1
    if min(options.gb, options.state_gb, options.repeats) <= 0:
        parser.error("sizes and repeats have to be more than 0")
    found = measure(options)
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(found.pop("device"))
    for part, figures in found.items():
        print(part)
        for name, figure in figures.items():
            print(f"  {name:40} {', '.join(f'{key} {value:.3g}' for key, value in figure.items())}")


if __name__ == "__main__":
    main()
