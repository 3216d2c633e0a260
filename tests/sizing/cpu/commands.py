"""A command to be profiled, whose behaviour its words say; it needs nothing but Python."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__)


def command(*words: object) -> tuple[str, ...]:
    """The command that does what `words` say: see `main`."""
    return (sys.executable, str(HERE), *map(str, words))


def alive(pid: int) -> bool:
    """Whether a process is there and has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def train(seconds: float, apart_s: float = 0.01, text: str = "step {}", end: str = "\n") -> None:
    """Tell a step so often."""
    over_s, step = time.monotonic() + seconds, 0
    while time.monotonic() < over_s:
        time.sleep(apart_s)
        step += 1
        sys.stdout.write(text.format(step) + end)


def grows(after_s: float, size_bytes: float) -> None:
    """Tell a step so often, and hold so much memory from some moment on."""
    train(after_s)
    held = b"x" * int(size_bytes)
    train(60)
    del held


def stays(path: str) -> None:
    """Run until it is killed, and ignore everything else; its id stands in a file."""
    import signal

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    Path(path).write_text(str(os.getpid()))
    time.sleep(600)


def main(what: str, *words: str) -> None:
    """What the first word says."""
    if what == "train":
        train(float(words[0]), *map(float, words[1:2]))
    elif what == "bar":
        train(600, *map(float, words or (0.01,)), "\x1b[32m{} of 100\x1b[0m", "\r")
    elif what == "stays":
        stays(words[0])
    elif what == "leaves":  # processes in sessions of their own, whose parents have ended
        for path in words:
            script = (
                f"import os, sys; os.fork() and os._exit(0); os.setsid(); os.execv({sys.executable!r}, sys.argv[1:])"
            )
            subprocess.run([sys.executable, "-c", script, sys.executable, str(HERE), "stays", path], check=True)
        train(600)
    elif what == "where":  # the CPUs of this process and of one that it starts
        said = subprocess.run(
            [sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"], capture_output=True, text=True
        )
        names = ("SLURM_CPUS_PER_TASK", "OMP_NUM_THREADS", "PROFILE_TEST", "SLURM_ARRAY_TASK_ID")
        told = " ".join(str(os.environ.get(name)) for name in names)
        Path(words[0]).write_text(f"{sorted(os.sched_getaffinity(0))} {said.stdout.strip()} {told}")
        train(600)
    elif what == "dies":
        print("all is well\nKeyError: 'no such layer'", end="", flush=True)
        sys.exit(7)
    elif what == "shouts":
        print("no progress here", flush=True)
        time.sleep(600)
    elif what == "memory":  # shared by the processes that it forks
        held = b"x" * int(words[0])
        first, (told, tell) = os.getpid(), os.pipe()
        for _ in range(3):
            os.fork()
        os.write(tell, b".")
        if os.getpid() == first:  # no step before all of them are there
            for _ in range(8):
                os.read(told, 1)
            train(600)
        time.sleep(600)
        del held
    elif what == "grows":
        grows(*map(float, words))
    elif what == "reads":
        for step in range(10**6):
            Path(words[0]).read_bytes()
            print(f"step {step}", flush=True)
            time.sleep(0.01)
    elif what == "api":
        import elastic

        for _ in range(10**6):
            time.sleep(0.002)
            elastic.step(samples=8)


if __name__ == "__main__":
    main(*sys.argv[1:])
