"""What depends on Slurm's release, and the chroot in which another one runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from slurm_plugin.errors import SandboxError
from slurm_plugin.pilots import reservation
from slurm_plugin.sandbox.cluster import release_of
from slurm_plugin.sandbox.config import cgroup_conf
from tests.slurm_plugin.plugins import CHECKOUT, NOBODY
from tests.support.messages import pattern
from tests.support.programs import shell_script
from tools import slurm_releases

SCRIPT = CHECKOUT / "tools" / "slurm_root.sh"


def controller(folder: Path, says: str) -> Path:
    path = shell_script(folder / "slurmctld", f"echo '{says}'")
    return path


@pytest.mark.parametrize(
    ("says", "release"), [("slurm-wlm 22.05.8", (22, 5)), ("slurm 24.11.5", (24, 11)), ("slurm-wlm 26.05.5-1", (26, 5))]
)
def test_the_release_is_the_controllers_own(tmp_path: Path, says: str, release: tuple[int, int]) -> None:
    assert release_of(controller(tmp_path, says)) == release


def test_a_controller_without_a_release_is_an_error_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match=pattern("slurm_plugin.release.no_release", answer="hello")) as caught:
        release_of(controller(tmp_path, "hello"))
    assert "\n" not in str(caught.value)


def test_only_newer_releases_get_the_reservation_and_are_kept_off_the_machines_cgroups() -> None:
    assert not reservation.needed((22, 5))
    assert cgroup_conf((22, 5)) == ""  # it would not know the word
    assert reservation.needed((24, 11))
    assert cgroup_conf((24, 11)) == "CgroupPlugin=disabled\n"


@pytest.mark.parametrize(
    ("enforce", "users"),
    [
        ("", "users=-daemon"),
        ("none", "users=-daemon"),
        ("nosteps", "users=-daemon"),
        ("limits,qos", "accounts=root"),
        ("Associations", "accounts=root"),
    ],
)
def test_the_reservation_names_a_user_only_where_one_needs_no_account(enforce: str, users: str) -> None:
    words = reservation.create_command("svc1", enforce)
    assert [word for word in words if word.startswith(("users=", "accounts="))] == [users]


def test_the_chroot_needs_a_suite_and_a_command() -> None:
    done = subprocess.run([SCRIPT, "trixie"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "usage: " in done.stderr


def test_the_chroot_says_in_one_line_that_it_needs_root() -> None:
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}
    # A copy: nobody may be unable to enter the folders that the checkout is in.
    with tempfile.TemporaryDirectory(prefix="bft-test-", dir="/tmp") as folder:
        script = Path(folder) / "tools" / SCRIPT.name
        script.parent.mkdir()
        shutil.copy(SCRIPT, script)
        for path in (script, *script.parents[:2]):
            path.chmod(0o755)
        done = subprocess.run(
            [script, "trixie", "true"], cwd=folder, capture_output=True, text=True, check=False, **user
        )  # type: ignore[call-overload]
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "needs root" in done.stderr


JUNIT = b"""<testsuites><testsuite>
<testcase classname="tests.slurm_plugin.test_spank" name="test_a" time="1.25"/>
<testcase classname="tests.slurm_plugin.test_spank" name="test_b" time="0.5"><skipped message="no ch-run"/></testcase>
<testcase classname="tests.slurm_plugin.test_spank" name="test_c" time="0.5">
<failure message="assert 1&#10;0"/></testcase>
<testcase classname="tests.slurm_plugin.test_munge" name="test_d" time="0.75"><error message="no munged"/></testcase>
</testsuite></testsuites>"""


def test_a_report_is_counted_and_names_what_did_not_pass() -> None:
    assert slurm_releases.outcomes(JUNIT) == {
        "passed": 1,
        "tests_s": 3,
        "failed": {
            "tests.slurm_plugin.test_spank.test_c": "assert 1",
            "tests.slurm_plugin.test_munge.test_d": "no munged",
        },
        "skipped": {"tests.slurm_plugin.test_spank.test_b": "no ch-run"},
    }


def test_the_table_has_each_release_and_group_and_says_where_there_is_no_result(tmp_path: Path) -> None:
    for release, group in (("26.05", "e2e"), ("24.11", "bftd"), ("26.05", "bftd")):
        result = {"release": f"{release}.5", **slurm_releases.outcomes(JUNIT)}
        (tmp_path / f"{release}-{group}.json").write_text(json.dumps({"result": result}))
    head, _, *rows = slurm_releases.table(tmp_path).splitlines()
    assert head.split(" | ")[1:] == ["22.05", "24.11.5", "26.05.5 |"]
    counts = "1 passed, 2 failed, 1 skipped"
    assert [row.strip("| ").split(" | ")[1:] for row in rows] == [
        ["no result", "no result", "no result"],
        ["no result", counts, counts],
        ["no result", "no result", "no result"],
        ["no result", "no result", counts],
    ]


@pytest.mark.parametrize("words", [(), ("25.11",), ("26.05", "elsewhere")])
def test_a_release_or_group_that_is_not_known_ends_in_one_line(words: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "tools.slurm_releases", *words]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n"), done.stdout) == (2, 1, "")
    assert all(known in done.stderr for known in (*slurm_releases.SUITES, *slurm_releases.GROUPS))


def test_every_group_is_a_folder_of_tests() -> None:
    assert all((CHECKOUT / "tests" / group).is_dir() for group in slurm_releases.GROUPS)
