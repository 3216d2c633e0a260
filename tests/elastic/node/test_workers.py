"""A worker's life around the user's script: it looks like `python script.py`, in a process that bftd prepared."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from elastic.link.wire import Message
from tests.elastic.far_end import SECRET, FarEnd, accepted

RUN = """
import os, sys
from elastic.node.workers import run_worker
from elastic.session import new_page
os._exit(run_worker(sys.argv[1:], {}, new_page()))
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

    `told` gets what the worker says.
    """

    def listen() -> tuple[FarEnd, Message]:
        end, hello = accepted(server)
        while told is not None and (message := end.receive()) is not None:
            told.append(message)
            end.send({"op": "heard"})
        return end, hello

    script = folder / "kept" / "train.py"
    script.parent.mkdir()
    if source is not None:
        script.write_text(source)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        server.settimeout(5)  # some workers end before they connect
        connecting = pool.submit(listen)
        settings = {
            "BFT_DRIVER": f"127.0.0.1:{server.getsockname()[1]}",
            "BFT_SECRET": SECRET,
            "BFT_HOST": "n1.1",
            "BFT_LOCAL_RANK": "0",
            "BFT_SCRIPT_DIR": str(folder),
            "RANK": "0",
        }
        clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "HOROVOD_RANK")}
        merged = {name: value for name, value in (clean | settings | environ).items() if value}
        argv = [sys.executable, "-c", RUN, str(script), *arguments]
        if hangs_up:
            connecting.add_done_callback(lambda connected: connected.result()[0].shutdown())
        said = subprocess.run(argv, env=merged, capture_output=True, text=True, check=False, timeout=30)
        connecting.exception()  # held until now: a worker whose driver hangs up ends
        return said


def test_a_script_runs_as_main_with_its_arguments_and_the_modules_beside_the_users_file(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("WORD = 'found'\n")
    said = run(tmp_path, "import helper, sys\nprint(__name__, sys.argv[1:], helper.WORD)\n", "--fast", "2")
    assert (said.stdout, said.stderr, said.returncode) == ("__main__ ['--fast', '2'] found\n", "", 0)


def test_a_worker_without_a_rank_refuses_to_train_alone(tmp_path: Path) -> None:
    said = run(tmp_path, "print('training alone')\n", RANK="")
    assert (said.stdout, said.returncode) == ("", 70)
    assert said.stderr.startswith("bft: a worker was started without a rank")


def test_neither_the_script_nor_what_it_starts_is_handed_the_secret(tmp_path: Path) -> None:
    said = run(tmp_path, "import subprocess\nsubprocess.run(['env'])\n", BFT_TRAINER="7")
    assert "BFT_TRAINER=7" in said.stdout
    assert "BFT_SECRET" not in said.stdout


def test_a_worker_whose_driver_does_not_know_the_secret_does_not_begin(tmp_path: Path) -> None:
    said = run(tmp_path, "print('training')\n", BFT_SECRET="another")
    assert (said.stdout, said.stderr, said.returncode) == ("", "", 75)


def test_a_worker_whose_driver_is_gone_does_not_begin(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    said = run(tmp_path, "print('training')\n", BFT_DRIVER=f"127.0.0.1:{port}")
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


def test_what_the_script_registered_for_its_end_is_run(tmp_path: Path) -> None:
    said = run(tmp_path, "import atexit\natexit.register(print, 'goodbye')\nprint('hello')\n")
    assert said.stdout == "hello\ngoodbye\n"


def test_regression_another_content_at_the_scripts_path_ran_as_the_user(tmp_path: Path) -> None:
    told = {"BFT_SCRIPT_SHA256": hashlib.sha256(b"print('mine')\n").hexdigest()}
    said = run(tmp_path, "print('another one')\n", **told)
    assert (said.stdout, said.returncode) == ("", 1)
    [line] = said.stderr.splitlines()
    assert line.startswith("bft: ")
    assert line.endswith("train.py is not the script that was submitted: it was changed; submit it again")


def test_the_script_that_was_submitted_runs_and_is_told_no_digest(tmp_path: Path) -> None:
    source = "import os, sys\nprint('BFT_SCRIPT_SHA256' in os.environ, sys.modules['__main__'].__file__ == __file__)\n"
    said = run(tmp_path, source, BFT_SCRIPT_SHA256=hashlib.sha256(source.encode()).hexdigest())
    assert (said.stdout, said.stderr, said.returncode) == ("False True\n", "", 0)


@pytest.mark.parametrize(
    ("digest", "cure"), [("00", "set BFT_STATE_DIR to a folder of yours that"), ("", "put it where")]
)
def test_a_script_that_a_node_does_not_see_is_one_line_that_says_what_to_do(
    tmp_path: Path, digest: str, cure: str
) -> None:
    said = run(tmp_path, None, BFT_SCRIPT_SHA256=digest)
    assert said.returncode == 1
    assert said.stderr == f"bft: {tmp_path}/kept/train.py: No such file or directory; {cure} every node can read\n"


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
    assert said.stderr.startswith("bft: the connection to the trainer's driver is gone")
    assert said.stderr.count("\n") == 1


def test_a_script_that_fails_because_its_link_went_is_not_blamed(tmp_path: Path) -> None:
    source = "import elastic\ntry:\n    elastic.load()\nfinally:\n    print('no first start')\n"
    said = run(tmp_path, source, hangs_up=True)
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
