"""The program that the SPANK plug-in runs for --auto-gpus, and the values that it takes: answers, failures, end."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.slurm_plugin.plugins import CHECKOUT
from tests.support.messages import excerpt, says, wording
from tests.support.programs import shell_script
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow

Ask = Callable[..., tuple[str | None, str]]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("cc") or pytest.skip("no C compiler")
    made = tmp_path_factory.mktemp("spank") / "auto_gpus.so"
    flags = ["-std=c11", "-g", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined"]
    flags += ["-fsanitize-undefined-trap-on-error"]
    source = CHECKOUT / "slurm_plugin" / "plugins" / "spank" / "auto_gpus.c"
    subprocess.run([compiler, *flags, "-o", str(made), str(source)], check=True)
    return ctypes.CDLL(str(made))


@pytest.fixture
def ask(library: ctypes.CDLL, tmp_path: Path) -> Ask:
    """Runs a shell script in place of bft; gives the answer or None, and the complaint."""

    def ask(script: str, value: str = "step.py:make,global-batch=8", limit_s: int = 20) -> tuple[str | None, str]:
        program = shell_script(tmp_path / "bft", script)
        answer, why = ctypes.create_string_buffer(200), ctypes.create_string_buffer(512)
        sizes = ctypes.c_size_t(len(answer)), ctypes.c_size_t(len(why))
        words = str(program).encode(), limit_s, value.encode()
        failed = library.auto_gpus_ask(*words, answer, sizes[0], why, sizes[1])
        return (None if failed else answer.value.decode()), why.value.decode()

    return ask


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "Z"
    except FileNotFoundError:
        return False


def ends(pid: int) -> bool:
    """Whether a process that was killed, and is nobody's child here, is gone in a moment."""
    deadline_s = time.monotonic() + STILL_S
    while alive(pid) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return not alive(pid)


def test_the_value_reaches_the_program_as_one_word_and_its_line_is_the_answer(ask: Ask) -> None:
    assert ask('echo "$# $1 $2 $3 $4"') == ("4 size auto -- step.py:make,global-batch=8", "")


def test_the_program_has_a_process_group_of_its_own_and_no_input(ask: Ask) -> None:
    answer, _ = ask('echo "$(ps -o pgid= -p $$ | tr -d " ") $$ $(wc -c)"')
    assert answer is not None
    group, pid, read = answer.split()
    assert (group, read) == (pid, "0")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (
            wording("sizing.launch.no_file", path="echo chatter >&2; echo 'bft: step.py") + "' >&2; exit 2",
            wording("sizing.launch.no_file", path=wording("slurm_plugin.auto_gpus.refused", value="step.py")),
        ),
        ("exit 3", excerpt("slurm_plugin.auto_gpus.no_word")),
        ("echo 'bft: tracing: 20 %' >&2; kill -9 $$", wording("slurm_plugin.auto_gpus.ended", signal="9")),
        ("true", excerpt("slurm_plugin.auto_gpus.unreadable_answer")),
        ("echo one; echo two", excerpt("slurm_plugin.auto_gpus.unreadable_answer")),
        ("printf 'a\\033[2Jb\\n'", excerpt("slurm_plugin.auto_gpus.unreadable_answer")),
        ("head -c 100000 /dev/zero | tr '\\0' x", excerpt("slurm_plugin.auto_gpus.unreadable_answer")),
        ("printf 'bad\\033[2J\\n' >&2; exit 1", "--auto-gpus: bad?[2J"),
        ("head -c 100000 /dev/zero | tr '\\0' x >&2; printf '\\nlast words\\n' >&2; exit 1", "--auto-gpus: last words"),
    ],
)
def test_a_program_that_gives_no_answer_is_told_of_in_one_line(ask: Ask, script: str, said: str) -> None:
    answer, why = ask(script)
    assert answer is None
    assert said in why
    assert why.isprintable()


def test_a_program_that_is_not_there_is_named(library: ctypes.CDLL) -> None:
    answer, why = ctypes.create_string_buffer(9), ctypes.create_string_buffer(512)
    assert library.auto_gpus_ask(b"/nowhere/bft", 1, b"x", answer, ctypes.c_size_t(9), why, ctypes.c_size_t(512)) == -1
    assert b"/nowhere/bft cannot be run" in why.value


def test_what_takes_too_long_is_ended_with_all_that_it_has_started(ask: Ask, tmp_path: Path) -> None:
    answer, why = ask(f"sleep 600 & echo $! >{tmp_path}/pid; trap '' INT; wait; sleep 600", limit_s=1)
    assert answer is None
    assert says(why, "slurm_plugin.auto_gpus.no_answer", value=1)
    assert ends(int((tmp_path / "pid").read_text()))


def test_who_waits_for_longer_is_told_what_for(ask: Ask, capfd: pytest.CaptureFixture[str]) -> None:
    assert ask("echo done")[0] == "done"
    assert capfd.readouterr().err == ""
    assert ask("sleep 2.5; echo done")[0] == "done"
    assert says(capfd.readouterr().err, "slurm_plugin.auto_gpus.working_out", value="step.py:make,global-batch=8")


def test_what_the_program_leaves_behind_neither_keeps_sbatch_waiting_nor_lives_on(ask: Ask, tmp_path: Path) -> None:
    assert ask(f"sleep 600 & echo $! >{tmp_path}/pid; echo done")[0] == "done"
    assert ends(int((tmp_path / "pid").read_text()))


def test_no_open_file_is_left(ask: Ask) -> None:
    ask("echo done")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        ask("echo done")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("value", ["", "-v", "a b", "a;b", "a$b", "a'b", 'a"b', "a\\b", "é", "a\nb", "a" * 1001])
def test_a_value_that_would_not_travel_is_refused_with_an_example(library: ctypes.CDLL, value: str) -> None:
    why = ctypes.create_string_buffer(512)
    assert library.auto_gpus_check(value.encode(), why, ctypes.c_size_t(512)) == -1
    assert b"for example --auto-gpus=step.py:make_step,global-batch=256" in why.value


@pytest.mark.parametrize("value", ["s.py:f,global-batch=8", "/a/b_c.py:f", "gpt:h=1,l=2,global-batch=8"])
def test_steps_and_sizes_travel(library: ctypes.CDLL, value: str) -> None:
    assert library.auto_gpus_check(value.encode(), ctypes.create_string_buffer(512), ctypes.c_size_t(512)) == 0
