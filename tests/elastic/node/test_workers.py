"""A worker's life around the user's script: it looks like `python script.py`, in a process that bftd prepared."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from elastic.link.wire import Message
from tests.elastic.far_end import SECRET, accepted

RUN = """
import os, sys
from elastic.node.workers import run_worker
from elastic.session import new_page
os._exit(run_worker(sys.argv[1:], {}, new_page()))
"""


def run(
    folder: Path, source: str, *arguments: str, told: list[Message] | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    """Runs a script as a worker whose driver says who it is, and then nothing; `told` gets what the worker says."""

    def listen() -> None:
        end, _ = accepted(server)
        while told is not None and (message := end.receive()) is not None:
            told.append(message)
            end.send({"op": "heard"})

    script = folder / "kept" / "train.py"
    script.parent.mkdir()
    script.write_text(source)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        server.settimeout(5)  # some workers end before they connect
        pool.submit(listen)
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
        return subprocess.run(argv, env=merged, capture_output=True, text=True, check=False, timeout=30)


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
