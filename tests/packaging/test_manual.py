"""The manual pages and completions made of the commands' own definitions."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from bftd import __version__, config_file
from bftd.cli.main import bft
from bftd.config import keys
from tests.support.waiting import STILL_S

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGES = ("bft.1", "bftd.8", "bftd.toml.5")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("manual")
    command = [sys.executable, str(ROOT / "tools/package/manual.py"), str(folder)]
    subprocess.run(
        command, check=True, timeout=STILL_S, env={"PYTHONPATH": str(ROOT), "SOURCE_DATE_EPOCH": "1790000000"}
    )
    return folder


def page(made: Path, name: str) -> str:
    """The page without its markup."""
    return re.sub(r"\\f[BR]", "", (made / "man" / name).read_text()).replace("\\-", "-")


def commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_well_formed(made: Path, need: Callable[..., None], name: str) -> None:
    need("mandoc")
    found = subprocess.run(
        ["mandoc", "-T", "lint", str(made / "man" / name)], capture_output=True, text=True, check=False
    )
    assert found.stdout == ""


def test_every_command_and_option_is_in_the_page(made: Path) -> None:
    text = page(made, "bft.1")
    parts = dict(re.findall(r'^\.SS "([^"]*)"\n(.*?)(?=^\.S|\Z)', text, re.MULTILINE | re.DOTALL))
    assert set(parts) == {path for path, _ in commands(bft, "bft")}
    for path, command in commands(bft, "bft"):
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert option.opts[0] in parts[path], f"{path} {option.opts[0]}"


def test_every_key_is_in_the_page_and_in_the_configuration_that_is_installed(made: Path) -> None:
    text = page(made, "bftd.toml.5")
    for key in keys.reference():
        assert f".TP\n{key.name}\n" in text
    assert config_file.load(made / "bftd.toml") == keys.Config()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_accepts_its_completion(made: Path, shell: str) -> None:
    script = made / "completion" / f"bft.{shell}"
    assert "_BFT_COMPLETE" in script.read_text()
    if shell == "bash":
        subprocess.run(["bash", "-n", str(script)], check=True)


def test_the_rpm_spec_is_one(need: Callable[..., None]) -> None:
    need("rpmspec")
    spec = str(ROOT / "tools/package/bftd.spec")
    command = ["rpmspec", "-q", "--define", f"version_ {__version__}", spec]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [name.rsplit("-", 2)[:2] for name in done.stdout.split()] == [
        ["bftd", __version__],
        ["bftd-slurm-plugins", __version__],
    ]
