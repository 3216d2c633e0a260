"""The wheel as a stranger has it: its contents, a build that can be repeated, the types that a checker sees."""

from __future__ import annotations

import email
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from bftd import __version__
from tests.packaging.conftest import ROOT

pytestmark = pytest.mark.slow

_SOURCES = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "bftd", "elastic", "milp", "sizing", "slurm_plugin")


def built(folder: Path) -> Path:
    """The wheel of this tree, from a copy in a folder."""
    source = folder / "source"
    source.mkdir(parents=True)
    for name in _SOURCES:
        copied = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copied(ROOT / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation", "-w", folder, source]
    environ = os.environ | {"SOURCE_DATE_EPOCH": "1790000000"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("wheel"))


def test_two_builds_in_folders_of_other_names_are_equal_to_the_byte(wheel: Path, tmp_path: Path) -> None:
    assert built(tmp_path / "a folder of a longer name").read_bytes() == wheel.read_bytes()


def test_a_wheel_names_no_folder_of_the_machine_that_built_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as packed:
        for name in packed.namelist():
            text = packed.read(name)
            assert str(ROOT).encode() not in text, name
            assert str(wheel.parent).encode() not in text, name


def test_a_wheel_has_types_and_what_an_index_shows(wheel: Path) -> None:
    assert wheel.name == f"bftd-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        shown = email.message_from_bytes(packed.read(metadata))
    packages = {name.partition("/")[0] for name in names if name.endswith(".py")}
    assert packages == {name for name in _SOURCES if (ROOT / name).is_dir()}
    assert {f"{name}/py.typed" for name in packages} <= set(names)
    assert shown["Version"] == __version__
    assert shown["Author"]
    assert shown["Project-URL"]
    assert "Typing :: Typed" in shown.get_all("Classifier", [])
    assert {"torch", "horovod"} <= set(shown.get_all("Provides-Extra", []))


def test_a_checker_knows_what_a_script_calls(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    venv.create(home, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", home / "bin" / "python", "install", "-qq", "--no-deps", wheel]
    subprocess.run(pip, check=True, capture_output=True)

    def checked(script: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "train.py").write_text(script)
        command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", home / "bin" / "python", "train.py"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    right = checked(
        "from bftd import elastic\nfrom bftd.client import Client\n\ncheckpoint = elastic.load()\n"
        "if elastic.step(samples=32, loss=0.5, save_every=20):\n    elastic.save({'step': 1})\n"
        "print(len(Client().status().trainers))\n"
    )
    assert right.returncode == 0, right.stdout
    wrong = checked("from bftd import elastic\n\nelastic.step(samples='many')\n")
    assert "[arg-type]" in wrong.stdout
