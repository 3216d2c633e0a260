"""Every other `bft` of the documentation, typed on a private cluster with files as the pages suppose them."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import written
from tests.docs.test_sessions_cluster import Shell, shell

pytestmark = [pytest.mark.cluster, pytest.mark.torch]

ASSETS = written.ROOT / "tests" / "bftd" / "simulation" / "trace" / "assets"
TRAINER = {
    "name": "resnet-1",
    "nodes_min": 1,
    "nodes_max": 4,
    "work_samples": 1e5,
    "curve_nodes": [1, 2, 4],
    "curve_samples_per_s": [520, 1060, 2040],
}

# What is not typed here, and what tries it instead.
NOT_HERE = {
    r"^bft sandbox up": "others may have a cluster on this machine: tests/bftd/cli/admin/test_sandbox_site.py",
    r"^bft trace from-sacct .*(\.\.\.|--since 2026-)": "it asks Slurm's accounting: tests/e2e/test_accounting.py",
    r"^bft trace from-slurm": "it runs until it is interrupted: tests/bftd/simulation/trace/recording/test_recorder.py",
    r"^bft size check": "it needs a GPU: tests/bftd/cli/size/test_check.py",
    r"^bft size learn": "it needs a job that ran on GPUs: tests/bftd/cli/size/test_learn_cluster.py",
    r"^bft size cpu": "it runs a program for minutes: tests/sizing/cpu/test_cpu_end_to_end.py",
    r"grep 'pilots ask'": "it needs a profile of such a run: tests/elastic/test_shares_on_a_cluster.py",
    r"llama-7b/config\.json": "it is a file of somebody's: tests/bftd/cli/size/test_fit.py",
}
# (what a page says, what is typed instead)
INSTEAD = (
    (r"\b(JOB|4711)\b", "1"),
    (r" \[ARGUMENTS\]", ""),
    (r"/lustre/me/", "$PWD/"),
    (r"\b(week|month|january|year)\.csv\.gz|/var/lib/bftd/shadow-trace\.csv\.gz", "day.csv.gz"),
    (r"\b[xX]\.json(\.gz)?\b", "X.json"),
    (r"0-255", "'n[1-4]'"),
    (r"(?<=--elastic=)('?)1-(64|16|8)\b", r"\g<1>1-4"),
    (r"n\[1-400\]", "n[1-4]"),
    (r"login\[1-2\]", "svc1"),
    (r"^(bft size (?:fit|choose))", r"\1 --no-start --partitions examples/size_centre.json"),
    (r"--into job\.sh", "--into job.sh --yes"),
    (r"--since \$FROM --until \$TO", "--since 2026-03-01 --until 2026-03-02"),
)


def others() -> Iterator[tuple[str, str]]:
    """Where each command of bft stands that no session walks, and what is typed."""
    for page in written.PAGES:
        for block in written.blocks(page):
            for line in () if block.run or block.tag not in ("", *written.COMMAND_TAGS) else block.lines:
                if not line.text.startswith("bft ") or any(re.search(each, line.text) for each in NOT_HERE):
                    continue
                text = line.text
                for old, new in INSTEAD:
                    text = re.sub(old, new, text)
                yield f"{block.page}:{line.at}", text


def prepare(typist: Shell, folder: Path) -> None:
    for name in ("jobs.txt", "nodes.txt", "events.txt", "reservations.txt"):
        shutil.copy(ASSETS / name, folder)
    shutil.copy(written.ROOT / "examples" / "train_torchrun.py", folder / "train.py")
    (folder / "X.json").write_text(json.dumps([TRAINER]))
    (folder / "job.sh").write_text("#!/bin/bash\n#SBATCH --time=1:00:00\nsrun python train.py\n")
    files = "--nodes nodes.txt --events events.txt --reservations reservations.txt"
    for text in (
        'eval "$(bft sandbox up --nodes 4 --tuned)"',
        f"bft trace from-sacct jobs.txt {files} --since 2026-03-01 --until 2026-03-02 -o day.csv.gz",
    ):
        code, said = typist.run(text)
        assert code == 0, said


def test_every_command_of_bft_that_no_session_walks_ends_well() -> None:
    told = {text: where for where, text in others()}
    jobs = [text for text in told if text.startswith("bft sbatch")]
    wrong = []
    with shell() as typist:
        code, said = typist.run("pwd")
        assert code == 0
        prepare(typist, Path(said.strip()))
        # they are to be known, not to train
        known = ("timeout 600 bash -c 'until bft explain 1; do sleep 0.2; done'", "scancel -u $(id -un)")
        for text in (*jobs, *known, *(text for text in told if text not in jobs)):
            begun_s = time.monotonic()
            code, said = typist.run(text)
            print(f"{time.monotonic() - begun_s:5.1f} s  {text.splitlines()[0]}")
            if code != 0:
                wrong.append(f"{told.get(text, 'here')}: {text}\nexit code {code}\n{said}")
    assert not wrong, "\n".join(wrong)


def test_what_is_left_out_stands_on_a_page() -> None:
    lines = [line.text for page in written.PAGES for block in written.blocks(page) for line in block.lines]
    assert [each for each in NOT_HERE if not any(re.search(each, line) for line in lines)] == []
