"""The tests with a real cluster on one Slurm release after another: `make test-slurm RELEASE=26.05`.

Each release runs in a chroot of the Debian suite that has it (tools/slurm_root.sh). Each group of tests leaves a result
in benchmarks/results/slurm, and docs/reference/slurm.md has the table of them all.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks import markdown
from benchmarks.evidence import kept

CHECKOUT = Path(__file__).resolve().parents[1]
RESULTS = CHECKOUT / "benchmarks" / "results" / "slurm"
SUITES: Mapping[str, str] = {"22.05": "bookworm", "24.11": "trixie", "26.05": "sid"}
"""The Debian suite that has a release."""

GROUPS: Mapping[str, str] = {
    "slurm_plugin": "reading Slurm, pilots, plug-ins, site check",
    "bftd": "daemon, earmarks, recorder",
    "elastic": "training on pilots",
    "e2e": "the main job, accounts and limits, restarts, a second user",
}
"""The folders of tests/, each with what is tried there."""

_MARKS = "cluster or accounting or browser"  # these words let tests/conftest.py pass files over unread
_NOT_OURS = ("BFTD_REQUIRE_ALL", "CI")  # with these, what the chroot lacks would be a failure


def main() -> int:
    """Run the groups named behind a release, all if none is; return 1 if a test failed, 2 for a word not known."""
    release, *groups = sys.argv[1:] or [""]
    if release not in SUITES or set(groups) - GROUPS.keys():
        print(f"usage: make test-slurm RELEASE={'|'.join(SUITES)} [GROUP={'|'.join(GROUPS)}]", file=sys.stderr)
        return 2
    failed = [group for group in groups or GROUPS if run(release, group)]
    return 1 if failed else 0


def run(release: str, group: str) -> bool:
    """Run one group on a release and keep its result; return whether a test failed.

    Raise OSError, ValueError or SubprocessError if the tests could not run.
    """
    root = [str(CHECKOUT / "tools" / "slurm_root.sh"), SUITES[release]]
    says = subprocess.run([*root, "slurmctld", "-V"], stdout=subprocess.PIPE, text=True, check=True).stdout.split()[-1]
    if not says.startswith(f"{release}."):
        raise ValueError(f"Debian's {SUITES[release]} has Slurm {says} by now: set SUITES in {Path(__file__).name}")
    commit, host = kept.commit(), kept.this_host()
    with tempfile.TemporaryFile() as report:
        # the chroot sees no file of this machine, but what is open
        tests = [
            *("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", _MARKS, f"tests/{group}"),
            *("-n", str(os.cpu_count()), "--dist", "loadfile", f"--junitxml=/dev/fd/{report.fileno()}"),
        ]
        environ = {key: value for key, value in os.environ.items() if key not in _NOT_OURS}
        code = subprocess.run([*root, *tests], env=environ, pass_fds=[report.fileno()], check=False).returncode
        report.seek(0)
        if not (told := report.read()):
            raise ValueError(f"the tests in tests/{group} were not run to their end (exit code {code})")
        result = {"release": says, **outcomes(told)}
    command = f"make test-slurm RELEASE={release} GROUP={group}"
    kept.write(f"slurm/{release}-{group}", kept.Kept(command, commit, kept.today(), host, result))
    return code != 0


def outcomes(report: bytes) -> dict[str, Any]:
    """Count the tests of a report in JUnit's form by outcome, and name those that failed or were skipped, with why."""
    cases = list(ElementTree.fromstring(report).iter("testcase"))
    failed: dict[str, str] = {}
    skipped: dict[str, str] = {}
    for case in cases:
        for child in case:
            kept = skipped if child.tag == "skipped" else failed if child.tag in ("failure", "error") else None
            if kept is not None:
                kept[f"{case.get('classname')}.{case.get('name')}"] = child.get("message", "").partition("\n")[0][:200]
    seconds = sum(float(case.get("time", 0)) for case in cases)
    passed = len(cases) - len(failed) - len(skipped)
    return {"passed": passed, "tests_s": round(seconds), "failed": failed, "skipped": skipped}


def table(folder: Path = RESULTS) -> str:
    """Return the table of what was tried on each release, from the results in a folder."""
    kept = {path.stem: json.loads(path.read_text(encoding="utf-8"))["result"] for path in folder.glob("*.json")}
    exact = {stem.partition("-")[0]: result["release"] for stem, result in sorted(kept.items())}
    rows = [
        [f"`tests/{group}`: {what}", *(_cell(kept.get(f"{name}-{group}")) for name in SUITES)]
        for group, what in GROUPS.items()
    ]
    return markdown.table(["tests with a real cluster", *(exact.get(name, name) for name in SUITES)], rows)


def _cell(result: Mapping[str, Any] | None) -> str:
    if result is None:
        return "no result"
    parts = {"passed": result["passed"], "failed": len(result["failed"]), "skipped": len(result["skipped"])}
    return ", ".join(f"{count} {word}" for word, count in parts.items() if count or word == "passed")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, ValueError, subprocess.SubprocessError, kept.EvidenceError) as error:
        sys.exit(f"test-slurm: {error}")
