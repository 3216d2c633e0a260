"""All commands together: docs/reference/commands.md has each; each that reads has `--json` with its form's number."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from bftd.base import errors
from bftd.cli.main import bft
from tests.bftd.cli import forms
from tests.support.messages import fragment, says
from tests.support.waiting import STILL_S

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "commands.md"
ROW = re.compile(r"^\| `(bft [\w -]+)` \|.*\| (reads|acts|shows)(?:, daemon)? \|$", re.MULTILINE)
# What must not be loaded where it is not used: each takes longer than all the rest.
HEAVY = {
    "torch",
    "numpy",
    "highspy",
    "gurobipy",
    "textual",
    "matplotlib",
    "aiohttp",
    "rich.console",
    "ClusterShell",
}


def commands(group: click.Group = bft, words: tuple[str, ...] = ("bft",)) -> Iterator[tuple[str, click.Command]]:
    """Every command below a group, by all of its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from commands(found, (*words, name))
        else:
            yield " ".join((*words, name)), found


COMMANDS = dict(commands())
LISTED = dict(ROW.findall(PAGE.read_text(encoding="utf-8")))


def test_regression_an_h_in_an_option_of_sbatch_was_taken_for_help() -> None:
    for words in (["sbatch", "-Jhorovod", "--elastic=1-2"], ["run", "--nodes=1-2", "-Jhorovod"]):
        ended = CliRunner().invoke(bft, words)
        assert "Usage: " not in ended.output or ended.exit_code != 0, words


@pytest.mark.parametrize("words", ["bft", *sorted(COMMANDS.keys() - {"bft sbatch", "bft run"})])
def test_every_command_takes_h_for_help(words: str) -> None:
    short, whole = (CliRunner().invoke(bft, [*words.split()[1:], option]) for option in ("-h", "--help"))
    assert (short.exit_code, short.output) == (0, whole.output)
    assert "-h, --help" in short.output


def test_every_command_is_on_the_page_as_one_that_reads_acts_or_shows() -> None:
    assert LISTED.keys() == COMMANDS.keys()


@pytest.mark.parametrize(
    ("words", "name"),
    [(["state", "ls"], "bft checkpoints"), (["resume"], "bft unpause"), (["size", "tune"], "bft size split")],
)
def test_a_former_name_works_and_names_its_successor(words: list[str], name: str) -> None:
    ran = CliRunner().invoke(bft, [*words, "--help"], prog_name="bft")
    assert ran.exit_code == 0
    assert ran.stdout.startswith(f"Usage: {name} ")
    assert says(ran.stderr, "cli.lazy.former_name", path2=fragment("bft"), name=name.split()[-1])


def test_the_help_shows_what_most_need_first_and_no_call_of_our_own_processes() -> None:
    shown = re.findall(r"^  ([a-z]+)  ", CliRunner().invoke(bft, ["size", "--help"]).stdout, re.MULTILINE)
    assert shown[:4] == ["fit", "choose", "cpu", "inventory"]
    assert {*shown, "auto"} == {name.split()[2] for name in COMMANDS if name.startswith("bft size ")}


@pytest.mark.parametrize("name", [name for name, kind in LISTED.items() if kind == "reads"])
def test_a_command_that_reads_prints_json_with_a_documented_form(name: str) -> None:
    assert any("--json" in option.opts for option in COMMANDS[name].params), f"{name} has no --json"
    assert name in forms.forms(), f"docs/reference/json.md has no table of {name}"


def test_the_page_of_forms_has_tables_of_commands_alone() -> None:
    assert {title.partition(" --")[0] for title in forms.forms()} <= COMMANDS.keys()


def test_json_is_printed_in_one_way_alone_so_that_its_form_has_a_number() -> None:
    wrong = []
    for path in sorted((ROOT / "bftd" / "cli").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if name in ("click.echo", "common.write", "print") and "json.dumps" in ast.unparse(node):
                wrong.append(f"{path.name}:{node.lineno}")
    assert wrong == [], "print it with common.echo_json"


def test_a_table_of_forms_refuses_fields_that_are_missing_or_unknown() -> None:
    assert forms.unlike("bft trainers", ["format", "trainers", "more"]) == ""
    assert "no table of bft trainers" in forms.unlike("bft trainers", ["trainers"])
    assert "no table of bft trainers" in forms.unlike("bft trainers", ["trainers", "more", "else"])


def test_the_exit_codes_of_errors_are_those_of_the_page() -> None:
    codes = set(map(int, re.findall(r"^\| (\d+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)))
    kinds = [item for item in vars(errors).values() if isinstance(item, type) and issubclass(item, errors.BftError)]
    assert {kind.exit_code for kind in kinds} == {1, 2, 3}
    assert codes == {0, 1, 2, 3, 130, 143}


LIGHT = ("--version", "status", "trainers", "explain 1", "tune --t-fwd 1", "usage --since 2026-11-01")


@pytest.mark.slow
@pytest.mark.parametrize("line", LIGHT)
def test_a_command_loads_nothing_heavy_before_it_needs_it(line: str, tmp_path: Path) -> None:
    words = line.split()
    asked = (
        "import json, sys\n"
        f"sys.argv = {['bft', *words]!r}\n"
        "from bftd.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as ended:\n"
        "    print(json.dumps([ended.code, sorted(sys.modules)]))\n"
    )
    environ = {"PATH": "/usr/bin:/bin", "BFTD_SOCKET": str(tmp_path / "none"), "BFTD_CONFIG": "", "HOME": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", asked],
        capture_output=True,
        text=True,
        env=environ,
        cwd=ROOT,
        timeout=STILL_S,
        check=True,
    )
    code, loaded = json.loads(ran.stdout.splitlines()[-1])
    assert code == (0 if words[-1].startswith("--") else 1), ran.stderr
    assert HEAVY & set(loaded) == set()
