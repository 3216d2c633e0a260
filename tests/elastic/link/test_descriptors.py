"""The limit of open files: a driver has what it may, its children what the user set."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import resource, subprocess, sys
soft, hard = int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
from elastic.link import descriptors
from elastic.link.child_process import prepare_child
may = descriptors.raise_limit()
assert descriptors.raise_limit() == may
argv = [sys.executable, "-c", "import resource; print(*resource.getrlimit(resource.RLIMIT_NOFILE), end=' ')"]
sys.stdout.write(f"{may} ")
sys.stdout.flush()
for prepare in (descriptors.ordinary_limit, prepare_child):
    subprocess.run(argv, preexec_fn=prepare, check=True)
"""


def limits(soft: int, hard: int) -> list[int]:
    argv = [sys.executable, "-c", PROGRAM, str(soft), str(hard)]
    return [int(word) for word in subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()]


def test_regression_1024_files_were_all_that_a_driver_could_open() -> None:
    assert limits(256, 4096) == [4096, 256, 4096, 256, 4096]


def test_a_limit_that_is_high_enough_is_left_alone() -> None:
    assert limits(4096, 4096) == [4096, 4096, 4096, 4096, 4096]


def test_without_a_raise_children_keep_what_there_is() -> None:
    program = "from elastic.link.descriptors import ordinary_limit; ordinary_limit()"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_hard_limit_of_a_thousand_million_is_not_taken_as_it_is() -> None:
    program = (
        "import resource\n"
        "from elastic.link import descriptors\n"
        "seen = []\n"
        "resource.getrlimit = lambda _: seen[-1] if seen else (1024, 1 << 30)\n"
        "resource.setrlimit = lambda _, pair: seen.append(pair)\n"
        "assert descriptors.raise_limit() == 1 << 16, seen\n"
        "assert seen == [(1 << 16, 1 << 30)]\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
