"""The recipes that install bftd, against the program and setup.cfg: releases, requirements, commands, settings."""

from __future__ import annotations

import configparser
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from bftd import __version__, config_file
from tests.docs.known import problem

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "tools" / "package"
_VERSION = re.compile(
    r"\bbftd[-_](?:slurm-plugins[-_])?(\d+\.\d+\.\d+)|^version: (\S+)$|image\.version (\S+)", re.MULTILINE
)


NAMING = (
    "CITATION.cff",
    "docs/howto/install.md",
    *(f"tools/package/{name}" for name in ("apptainer.def", "ansible/site.yml", "spack/package.py")),
)


def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def loaded(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


@pytest.mark.parametrize("path", NAMING)
def test_a_recipe_names_the_release_of_this_tree_and_no_other(path: str) -> None:
    named = {next(filter(None, found)) for found in _VERSION.findall((ROOT / path).read_text())}
    assert named == {__version__}


def test_fixes_are_promised_for_the_minor_release_of_this_tree() -> None:
    minor = __version__.rpartition(".")[0]
    assert f"| {minor} | yes |" in (ROOT / "SECURITY.md").read_text()
    assert f"## {__version__}\n" in (ROOT / "CHANGELOG.md").read_text()


def test_a_citation_has_what_its_format_requires_and_the_paper() -> None:
    cited = loaded("CITATION.cff")
    assert {"cff-version", "message", "title", "authors", "version"} <= cited.keys()
    (paper,) = cited["references"]
    assert paper["identifiers"][0]["value"].removeprefix("arXiv:") in paper["url"]


def test_the_spack_recipe_requires_what_setup_cfg_requires() -> None:
    text = (RECIPES / "spack/package.py").read_text()
    ours = setup_cfg()["options"]
    wanted = {
        canonicalize_name(item.name): item.specifier
        for item in map(Requirement, ours["install_requires"].strip().splitlines())
        if not item.name.startswith("#")
    }
    found = {
        name: ranges
        for name, ranges in re.findall(r'"py-([\w-]+)@([\d.:,]+)"', text)
        if name not in ("setuptools", "torch", "xxhash")
    }
    assert found.keys() == wanted.keys()
    for name, ranges in found.items():
        lower = min(Version(item.version) for item in wanted[name] if item.operator == ">=")
        assert Version(ranges.split(":")[0]) == lower, name
        for gone in (item.version for item in wanted[name] if item.operator == "!="):
            assert not any(_contains(part, Version(gone)) for part in ranges.split(",")), name
    assert SpecifierSet(ours["python_requires"]) == SpecifierSet(">=" + re.findall(r'"python@([\d.]+):"', text)[0])
    modules = re.search(r"import_modules = \((.*)\)", text)
    assert modules is not None
    listed = setup_cfg()["options.packages.find"]["include"].replace("*", "").split()
    assert sorted(re.findall(r'"(\w+)"', modules[1])) == listed


def _contains(part: str, version: Version) -> bool:
    """Whether a range of Spack has a release; an end has all releases that begin with it."""
    low, colon, high = part.partition(":")
    ends = (high or low).split(".")
    below = not (high or not colon) or version.release[: len(ends)] <= tuple(map(int, ends))
    return Version(low) <= version and below


def test_the_settings_of_the_ansible_example_are_keys_of_the_configuration(tmp_path: Path) -> None:
    (play,) = loaded("tools/package/ansible/site.yml")
    given = play["roles"][0]["vars"]
    names = loaded("tools/package/ansible/bftd/defaults/main.yml").keys()
    assert given.keys() == names
    made = tmp_path / "bftd.toml"
    made.write_text(
        "".join(
            f"[{section}]\n" + "".join(f'{key} = "{value}"\n' for key, value in keys.items())
            for section, keys in given["bftd_settings"].items()
        )
    )
    assert config_file.load(made).daemon.mode == given["bftd_settings"]["daemon"]["mode"]


def test_the_ansible_role_writes_where_the_program_reads_and_asks_it_first() -> None:
    tasks = {task["name"]: task for task in loaded("tools/package/ansible/bftd/tasks/main.yml")}
    written = tasks["Write the configuration"]
    template = written["ansible.builtin.template"]
    assert template["dest"] == str(config_file.DEFAULT_PATH)
    assert (RECIPES / "ansible/bftd/templates" / template["src"]).exists()
    assert problem(shlex.split(template["validate"]), True) is None
    handlers = [handler["name"] for handler in loaded("tools/package/ansible/bftd/handlers/main.yml")]
    assert handlers == [written["notify"]]
    units = [task["ansible.builtin.systemd_service"] for name, task in tasks.items() if name.endswith("the daemon")]
    assert len(units) == 2
    assert all((ROOT / f"systemd/{unit['name']}.service").exists() for unit in units)


def test_the_form_asks_for_all_that_the_session_takes_and_the_session_starts_a_driver() -> None:
    form = loaded("tools/package/ondemand/form.yml.erb")
    asked = {name for name in form["form"] if not name.startswith("bc_")}
    assert form["attributes"].keys() - {"bc_queue"} == asked
    text = (RECIPES / "ondemand/template/script.sh.erb").read_text()
    assert set(re.findall(r"context\.(\w+)", text)) == asked
    shown = re.sub(r'<%= "#\{context.nodes_min\}.*?%>', "1-8", text)
    shown = re.sub(r"<%=.*?%>", "train.py", re.sub(r"<%-.*?-%>\n", "", shown))
    assert subprocess.run(["bash", "-n"], input=shown, text=True, check=False).returncode == 0
    assert problem(shlex.split(shown.splitlines()[-1].removeprefix("exec ")), True) is None
    assert loaded("tools/package/ondemand/submit.yml.erb")["batch_connect"]["template"] == "basic"


def test_the_image_is_made_of_a_file_of_the_release_and_runs_commands_that_are_there() -> None:
    text = (RECIPES / "apptainer.def").read_text()
    sections = dict(re.findall(r"^%(\w+)\n(.*?)(?=^%|\Z)", text, re.MULTILINE | re.DOTALL))
    source, inside = sections["files"].split()
    assert source.startswith("dist/bftd_")
    assert f"install -y --no-install-recommends {inside}" in sections["post"]
    for line in sections["test"].strip().splitlines():
        assert problem(shlex.split(line), True) is None
    shown = re.search(r"^#   apptainer run (.*)$", text, re.MULTILINE)
    assert shown is not None
    assert problem(["bft", *shlex.split(shown[1].split(".sif ")[1])], True) is None


def test_the_module_s_folders_are_those_that_the_manual_makes() -> None:
    text, page = (RECIPES / "modulefile.lua").read_text(), (ROOT / "docs/howto/install.md").read_text()
    root = re.search(r'pathJoin\("([^"]+)", version\)', text)
    assert root is not None
    home = f"{root[1]}/{__version__}"
    assert f"-m venv {home}" in page
    for name in re.findall(r'pathJoin\(root, "(\w+)"\)', text):
        assert f"{home}/{name}" in page
    assert f"{home}/bftd-{__version__}-py3-none-any.whl" in page


def test_a_workflow_calls_make_and_pins_what_it_takes_from_others() -> None:
    workflow = loaded(".github/workflows/ci.yml")
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    for step in steps:
        if "uses" in step:
            assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step["uses"])
    targets = workflow["jobs"]["checks"]["strategy"]["matrix"]["target"]
    commands = [step["run"] for step in steps if "run" in step]
    made = [words for words in map(shlex.split, commands) if words[0] == "make"]
    # what a bare image lacks to get that far
    assert [command.split()[0] for command in commands if not command.startswith("make ")] == ["apt-get", "git"]
    for target in [*targets, *(words[1] for words in made if "{" not in words[1])]:
        assert problem(["make", target], True) is None


def test_a_commit_is_checked_as_make_lint_checks() -> None:
    (repository,) = loaded(".pre-commit-config.yaml")["repos"]
    assert [hook["entry"] for hook in repository["hooks"]] == ["make lint"]


def test_the_source_distribution_has_every_folder_and_file_of_the_tree() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this tree is no clone")
    taken = {
        word
        for line in (ROOT / "MANIFEST.in").read_text().splitlines()
        if not line.startswith(("#", "global"))
        for word in line.split()[1:]
    }
    assert {name.partition("/")[0] for name in listed.stdout.splitlines()} == taken
