"""A worker's life around the user's script: it looks like `python script.py`, in a process that bftd prepared."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from elastic.link.wire import Message
from tests.elastic.far_end import SECRET, FarEnd, accepted
from tests.support.messages import fragment, pattern, says, wording
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow

RUN = """
import os, signal, sys, tempfile
tempfile.gettempdir()  # as the node process does
if "NUMPY_SEED" in os.environ:
    import numpy
    numpy.random.seed(int(os.environ["NUMPY_SEED"]))
from elastic.node.workers import run_worker
from elastic.worker.driver_link import new_page
pid = os.fork()
if pid == 0:
    os._exit(run_worker(sys.argv[1:], {}, new_page()))
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
if code < 0:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


def run(
    folder: Path,
    source: str | None,
    *arguments: str,
    hangs_up: bool = False,
    told: list[Message] | None = None,
    **environ: str,
) -> subprocess.CompletedProcess[str]:
    """Runs a script as a worker whose driver says who it is, and then nothing; or `hangs_up` right after that.

    `told` gets what the worker says; then a driver hangs up only when the state is asked for.
    """

    def listen() -> tuple[FarEnd, Message]:
        end, hello = accepted(server)
        while told is not None and (message := end.receive()) is not None:
            told.append(message)
            if hangs_up and message["op"] == "fetch":
                break
            end.send({"op": "heard"})
        return end, hello

    script = folder / "kept" / "train.py"
    script.parent.mkdir(exist_ok=True)
    if source is not None:
        script.write_text(source)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        server.settimeout(5)  # some workers end before they connect
        connecting = pool.submit(listen)
        settings = {
            "BFT_DRIVER": f"127.0.0.1:{server.getsockname()[1]}",
            "BFT_SECRET": SECRET,
            "BFT_LEASE": "n1.1",
            "BFT_LOCAL_RANK": "0",
            "BFT_SCRIPT_DIR": str(folder),
            "RANK": "0",
        }
        clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "HOROVOD_RANK")}
        merged = {name: value for name, value in (clean | settings | environ).items() if value}
        argv = [sys.executable, "-c", RUN, str(script), *arguments]
        if hangs_up:
            connecting.add_done_callback(lambda connected: connected.result()[0].shutdown())
        said = subprocess.run(
            argv,
            cwd=script.parent,
            env=merged,
            capture_output=True,
            text=True,
            check=False,
            timeout=STILL_S,
            start_new_session=True,
        )
        connecting.exception()  # held until now: a worker whose driver hangs up ends
        return said


def test_a_script_runs_as_main_with_its_arguments_and_the_modules_beside_the_users_file(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("WORD = 'found'\n")
    said = run(tmp_path, "import helper, sys\nprint(__name__, sys.argv[1:], helper.WORD)\n", "--fast", "2")
    assert (said.stdout, said.stderr, said.returncode) == ("__main__ ['--fast', '2'] found\n", "", 0)


def test_a_worker_without_a_rank_refuses_to_train_alone(tmp_path: Path) -> None:
    said = run(tmp_path, "print('training alone')\n", RANK="")
    assert (said.stdout, said.returncode) == ("", 70)
    assert says(said.stderr, "elastic.workers.no_rank")


def test_neither_the_script_nor_what_it_starts_is_handed_the_secret(tmp_path: Path) -> None:
    said = run(tmp_path, "import subprocess\nsubprocess.run(['env'])\n", BFT_TRAINER="7")
    assert "BFT_TRAINER=7" in said.stdout
    assert "BFT_SECRET" not in said.stdout


def test_a_worker_whose_driver_does_not_know_the_secret_does_not_begin(tmp_path: Path) -> None:
    said = run(tmp_path, "print('training')\n", BFT_SECRET="another")
    assert (said.stdout, said.stderr, said.returncode) == ("", "", 75)


def test_a_worker_whose_driver_is_gone_does_not_begin(tmp_path: Path) -> None:
    with socket.socket() as taken:  # nobody else gets the port, and nobody listens there
        taken.bind(("127.0.0.1", 0))
        said = run(tmp_path, "print('training')\n", BFT_DRIVER=f"127.0.0.1:{taken.getsockname()[1]}")
    assert (said.stdout, said.stderr, said.returncode) == ("", "", 75)


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        ("sys.exit()", 0, ""),
        ("sys.exit(7)", 7, ""),
        ("sys.exit('no data')", 1, "no data\n"),
        ("pass", 0, ""),
    ],
)
def test_the_exit_code_is_what_python_makes_of_the_scripts_end(tmp_path: Path, end: str, code: int, words: str) -> None:
    said = run(tmp_path, f"import sys\n{end}\n")
    assert (said.returncode, said.stderr) == (code, words)


def test_an_error_is_shown_as_python_shows_it_without_a_frame_of_bftds(tmp_path: Path) -> None:
    said = run(tmp_path, "def build():\n    raise ValueError('no layer')\n\n\nbuild()\n")
    assert said.returncode == 1
    lines = said.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert [line.strip().rpartition(", ")[0] for line in lines if line.startswith("  File")] == [
        f'File "{tmp_path}/kept/train.py", line 5',
        f'File "{tmp_path}/kept/train.py", line 2',
    ]
    assert lines[-1] == "ValueError: no layer"


LOST = "[/third_party/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:15552: Connection reset by peer"


def test_a_lost_peer_of_the_group_is_told_to_the_driver_alone(tmp_path: Path) -> None:
    told: list[Message] = []
    said = run(tmp_path, f"raise RuntimeError({LOST!r})\n", told=told)
    assert (said.stdout, said.stderr, said.returncode) == ("", "", 1)
    [error] = [message for message in told if message["op"] == "error"]
    assert LOST in error["text"]


@pytest.mark.parametrize("error", [f"RuntimeError({LOST[:40]!r})", "ConnectionResetError('Connection reset by peer')"])
def test_any_other_error_is_printed_too(tmp_path: Path, error: str) -> None:
    said = run(tmp_path, f"raise {error}\n", told=[])
    assert "Traceback" in said.stderr


def test_a_lost_peer_is_printed_where_no_driver_hears_of_it(tmp_path: Path) -> None:
    said = run(tmp_path, f"import time\ntime.sleep(0.2)\nraise RuntimeError({LOST!r})\n", hangs_up=True)
    assert "Traceback" in said.stderr or said.returncode == 75


def test_what_the_script_registered_for_its_end_is_run(tmp_path: Path) -> None:
    said = run(tmp_path, "import atexit\natexit.register(print, 'goodbye')\nprint('hello')\n")
    assert said.stdout == "hello\ngoodbye\n"


def test_regression_another_content_at_the_scripts_path_ran_as_the_user(tmp_path: Path) -> None:
    told = {"BFT_SCRIPT_SHA256": hashlib.sha256(b"print('mine')\n").hexdigest()}
    said = run(tmp_path, "print('another one')\n", **told)
    assert (said.stdout, said.returncode) == ("", 1)
    [line] = said.stderr.splitlines()
    assert line.startswith("bft: ")
    assert says(line, "elastic.workers.script_changed", path=fragment("train.py"))


def test_the_script_that_was_submitted_runs_and_is_told_no_digest(tmp_path: Path) -> None:
    source = "import os, sys\nprint('BFT_SCRIPT_SHA256' in os.environ, sys.modules['__main__'].__file__ == __file__)\n"
    said = run(tmp_path, source, BFT_SCRIPT_SHA256=hashlib.sha256(source.encode()).hexdigest())
    assert (said.stdout, said.stderr, said.returncode) == ("False True\n", "", 0)


@pytest.mark.parametrize(("digest", "cure"), [("00", wording("elastic.workers.set_folder")), ("", "put it where")])
def test_a_script_that_a_node_does_not_see_is_one_line_that_says_what_to_do(
    tmp_path: Path, digest: str, cure: str
) -> None:
    said = run(tmp_path, None, BFT_SCRIPT_SHA256=digest)
    assert said.returncode == 1
    assert (
        said.stderr
        == wording(
            "elastic.workers.unreadable",
            path=f"{tmp_path}/kept/train.py",
            strerror="No such file or directory",
            cure=cure,
        )
        + "\n"
    )


def test_a_script_may_start_processes_that_import_it_anew(tmp_path: Path) -> None:
    source = (
        "import multiprocessing\n"
        "def double(n):\n"
        "    return 2 * n\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.map(double, [1, 2]))\n"
        "        pool.close()\n"
        "        pool.join()\n"
    )
    said = run(tmp_path, source, BFT_SCRIPT_SHA256=hashlib.sha256(source.encode()).hexdigest())
    assert (said.stdout, said.returncode) == ("[2, 4]\n", 0), said.stderr


def test_regression_a_worker_that_had_lost_its_link_trained_on_with_nobody_to_keep_what_it_saved(
    tmp_path: Path,
) -> None:
    said = run(tmp_path, "import time\ntime.sleep(600)\n", hangs_up=True)
    assert (said.stdout, said.returncode) == ("", 75)
    assert re.match("bft: " + pattern("elastic.session.link_lost"), said.stderr)
    assert said.stderr.count("\n") == 1


def test_a_script_that_fails_because_its_link_went_is_not_blamed(tmp_path: Path) -> None:
    source = "import elastic\ntry:\n    elastic.load()\nfinally:\n    print('no first start')\n"
    said = run(tmp_path, source, hangs_up=True, told=[])
    assert (said.stdout, said.returncode) == ("no first start\n", 75)


@pytest.mark.parametrize(
    ("end", "last"),
    [
        ("raise ValueError('no layer')", "ValueError: no layer"),
        ("sys.exit('no data')", "no data"),
        ("os.kill(os.getpid(), 9)", None),
        ("sys.exit(7)", None),
        ("pass", None),
    ],
)
def test_the_driver_is_told_the_error_that_ends_a_script(tmp_path: Path, end: str, last: str | None) -> None:
    told: list[Message] = []
    run(tmp_path, f"import os, sys\n{end}\n", told=told)
    texts = [message["text"] for message in told if message["op"] == "error"]
    assert [text.splitlines()[-1] for text in texts] == ([last] if last else [])
    assert not any("runpy" in text or "elastic/" in text for text in texts)


ENDS = {
    "a thread that writes after the script's last line": """
import threading, time
def write():
    time.sleep(0.1)
    open("result", "w").write("final model")
threading.Thread(target=write).start()
""",
    "an executor's task": """
from concurrent.futures import ThreadPoolExecutor
import time
ThreadPoolExecutor().submit(lambda: (time.sleep(0.1), open("result", "w").write("final model")))
""",
    "a process pool's task of what the script defines": """
from concurrent.futures import ProcessPoolExecutor
import time
def write(words):
    time.sleep(0.1)
    open("result", "w").write(words)
pool = ProcessPoolExecutor(1)
pool.submit(write, "final model")
""",
    "a thread that pickles what the script defines": """
import pickle, threading, time
class Model:
    pass
def write():
    time.sleep(0.1)
    open("result", "wb").write(pickle.dumps(Model()))
threading.Thread(target=write).start()
""",
    "threads before exit handlers, the last registered first": """
import atexit, threading, time
atexit.register(print, "handler 1")
atexit.register(print, "handler 2")
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
print("script")
""",
    "a daemon thread is not waited for": """
import threading, time
threading.Thread(target=lambda: (time.sleep(20), print("late")), daemon=True).start()
""",
    "sys.exit in a thread": "import sys, threading\nthreading.Thread(target=sys.exit, args=(3,)).start()\n",
    "an error in a thread": "import threading\nthreading.Thread(target=lambda: 1 / 0, name='T').start()\n",
    "an error in an exit handler": "import atexit\natexit.register(lambda: 1 / 0)\n",
    "sys.exit in an exit handler": "import atexit, sys\natexit.register(lambda: sys.exit(5))\n",
    "sys.exit with a word while a thread works": """
import sys, threading, time
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
sys.exit("no data")
""",
    "an error while a thread works": """
import threading, time
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
raise ValueError("no layer")
""",
    "SystemExit without a code": "raise SystemExit\n",
    "SystemExit(None)": "raise SystemExit(None)\n",
    "SystemExit(True)": "raise SystemExit(True)\n",
    "sys.exit(-1)": "import sys\nsys.exit(-1)\n",
    "sys.exit(256)": "import sys\nsys.exit(256)\n",
    "sys.exit with a number that no code can be": "import sys\nsys.exit(1 << 70)\n",
    "sys.exit with a tuple": "import sys\nsys.exit((1, 2))\n",
    "KeyboardInterrupt": "raise KeyboardInterrupt\n",
    "Ctrl-C": "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(20)\n",
    "an interruption of its own": "import _thread, time\n_thread.interrupt_main()\ntime.sleep(20)\n",
    "os._exit": "import os\nprint('said', flush=True)\nos._exit(9)\n",
    "an error with a cause": """
try:
    {}["a"]
except KeyError as error:
    raise ValueError("no layer") from error
""",
    "an error shown by the script's own hook": """
import sys
sys.excepthook = lambda kind, error, trace: print("mine:", kind.__name__, error, trace.tb_lineno)
raise ValueError("no layer")
""",
    "a script that is no Python": "def\n",
    "a file that nobody closed": """
file = open("result", "w")
file.write("the last losses")
""",
    "a compressed file that nobody closed": """
import gzip
file = gzip.open("result", "wt")
file.write("the last losses")
""",
    "a file that nobody closed, after an error": """
file = open("result", "wb")
file.write(b"the last losses")
raise ValueError("no layer")
""",
    "a file that nobody closed and that is no garbage by the script's word": """
import gc
file = open("result", "w")
gc.freeze()
file.write("the last losses")
""",
    "a fork that runs to the script's end": """
import os, sys
if (pid := os.fork()) == 0:
    print("uploaded", flush=True)
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""",
    "a folder for temporary files that the script names": """
import os
os.environ["TMPDIR"] = "."
import tempfile
print(os.path.samefile(tempfile.gettempdir(), "."))
""",
    "output that cannot be written any more": """
import os, sys
sys.stdout = open(os.open("/dev/full", os.O_WRONLY), "w")
print("the last losses")
""",
    "a multiprocessing child is waited for": """
import multiprocessing, time
def write():
    time.sleep(0.1)
    open("result", "w").write("by a child")
multiprocessing.get_context("fork").Process(target=write).start()
""",
    "a multiprocessing child of the spawn kind": """
import multiprocessing
def write():
    open("result", "w").write(f"{__name__} {multiprocessing.current_process().name}")
if __name__ == "__main__":
    multiprocessing.get_context("spawn").Process(target=write, name="child").start()
""",
    "a daemonic multiprocessing child is not": """
import multiprocessing, time
multiprocessing.get_context("fork").Process(target=time.sleep, args=(20,), daemon=True).start()
""",
    "a pool that is left with a busy worker": """
import multiprocessing, time
with multiprocessing.get_context("fork").Pool(2) as pool:
    pool.apply_async(time.sleep, (20,))
    time.sleep(0.2)
print("left")
""",
    "a helper that is asked to end": """
import subprocess
for argv in (["sleep", "20"], "exec sleep 20"):
    helper = subprocess.Popen(argv, shell=isinstance(argv, str))
    helper.terminate()
    print(helper.wait(5))
""",
    "a fork that is asked to end": """
import os, signal, time
pid = os.fork()
if pid == 0:
    time.sleep(20)
    os._exit(0)
time.sleep(0.1)
os.kill(pid, signal.SIGTERM)
print(os.waitpid(pid, 0)[1])
""",
    "a handler of the script's own, in itself and in a fork": """
import os, signal
signal.signal(signal.SIGTERM, lambda number, frame: print("asked to end", number, flush=True))
os.kill(os.getpid(), signal.SIGTERM)
pid = os.fork()
if pid == 0:
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(0)
print(os.waitpid(pid, 0)[1])
""",
    "a script that ends its group": "import os, signal\nprint('over', flush=True)\nos.killpg(0, signal.SIGKILL)\n",
    "who it takes itself for": """
import multiprocessing, sys, threading
print(__name__, multiprocessing.current_process().name, threading.current_thread().name, __spec__, __package__)
print(sys.modules["__main__"].__dict__ is globals(), sorted(globals()))
""",
    "what it does not inherit of bftd's": """
import inspect
def f(x: int): pass
print(f.__annotations__, inspect.getsource(f))
""",
}


@pytest.mark.parametrize("source", [pytest.param(source, id=name) for name, source in ENDS.items()])
def test_a_script_ends_in_a_worker_as_it_does_under_python(tmp_path: Path, source: str) -> None:
    """What it prints, what it leaves, and how it ends."""

    def outcome(folder: Path, said: subprocess.CompletedProcess[str]) -> tuple[object, ...]:
        result = folder / "result"
        left = result.read_bytes() if result.exists() else None
        if left is not None and left.startswith(b"\x1f\x8b"):
            left = gzip.decompress(left)
        return said.returncode, without_addresses(said.stdout), without_addresses(said.stderr), left

    def without_addresses(text: str) -> str:
        return re.sub(r"0x[0-9a-f]+|/\S*/(kept|plain)/|\b\d{4,}\b|name=\d+", "", text)

    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "train.py").write_text(source)
    argv = [sys.executable, "-u", str(plain / "train.py")]
    python = subprocess.run(
        argv, cwd=plain, capture_output=True, text=True, check=False, timeout=STILL_S, start_new_session=True
    )
    kept = tmp_path / "kept"
    assert outcome(kept, run(tmp_path, source, PYTHONUNBUFFERED="1")) == outcome(plain, python)


@pytest.mark.parametrize("end", ["raise ValueError('in the fork')", "sys.exit('in the fork')", "sys.exit()"])
def test_regression_a_fork_that_ended_by_itself_spoke_to_the_driver_and_broke_its_workers_link(
    tmp_path: Path, end: str
) -> None:
    source = f"""
import elastic, os, sys
elastic.step(samples=1)
if (pid := os.fork()) == 0:
    {end}
os.waitpid(pid, 0)
elastic.step(samples=1)
"""
    told: list[Message] = []
    assert run(tmp_path, source, told=told).returncode == 0
    # The farewell tells the last step: it comes only where nobody else used the link's seal.
    assert [message["op"] for message in told if message["op"] != "step"] == []
    assert (told[-1]["step"], told[-1]["final"]) == (2, True)


def test_regression_all_workers_of_a_node_and_all_their_restarts_had_the_same_random_numbers_of_numpy(
    tmp_path: Path,
) -> None:
    source = "import numpy\nprint(*numpy.random.randint(0, 1 << 30, 4))\n"
    # The process that both are forked from has loaded numpy, and is as far with its numbers.
    drawn = [run(tmp_path, source, NUMPY_SEED="1").stdout.split() for _ in range(2)]
    assert len({number for numbers in drawn for number in numbers}) == 8


def test_slurms_notice_ends_no_worker_and_no_system_call_of_one(tmp_path: Path) -> None:
    source = """
import os, signal, threading, time
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
ours, theirs = os.pipe()
threading.Timer(0.5, os.write, (theirs, b"read")).start()
print(os.read(ours, 9))
"""
    said = run(tmp_path, source)
    assert (said.stdout, said.stderr, said.returncode) == ("b'read'\n", "", 0)


def test_a_script_that_ends_its_process_group_does_not_end_the_other_workers(tmp_path: Path) -> None:
    said = run(tmp_path, "import os\nprint(os.getpgrp() == os.getpid(), os.getpgid(os.getppid()) == os.getpid())\n")
    assert said.stdout == "True False\n"


def test_a_helper_in_the_background_stays_its_workers_and_is_not_taken_for_an_ended_ones(tmp_path: Path) -> None:
    source = """
import os, subprocess, time
pid = int(subprocess.run(["sh", "-c", "sleep 30 >&- 2>&- & echo $!"], capture_output=True, check=True).stdout)
print(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1] == str(os.getpid()))
os.kill(pid, 9)
"""
    assert run(tmp_path, source).stdout == "True\n"
