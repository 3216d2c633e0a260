"""bftd's packages are found where a user's folder has the same name."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from bftd import own_packages
from elastic.node import container
from tests.support.messages import says

ROOT = Path(own_packages.__file__).parents[1]
OWN = f"import sys; sys.path.insert(1, {str(ROOT)!r}); "


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """A folder with modules of a user's."""
    (tmp_path / "elastic").mkdir()
    (tmp_path / "elastic" / "__init__.py").write_text("mine = True\n")
    (tmp_path / "milp.py").write_text("mine = True\n")
    return tmp_path


def python(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Runs code as a script in that folder."""
    (folder / "train.py").write_text(code)
    return subprocess.run([sys.executable, "train.py"], cwd=folder, capture_output=True, text=True, check=False)


def test_a_script_gets_bftds_elastic_beside_a_folder_of_that_name(beside: Path) -> None:
    said = python(
        beside, f"{OWN}from bftd import elastic; import elastic as again\nprint(elastic.step, again is elastic)"
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout.endswith(" True\n")


def test_the_users_module_that_was_imported_before_is_named(beside: Path) -> None:
    said = python(beside, f"{OWN}import elastic as mine\nfrom bftd import elastic")
    assert said.returncode == 1
    assert says(said.stderr, "bftd.own_packages.hides", found=str(beside / "elastic" / "__init__.py"), name="elastic")


def test_bftds_programs_find_their_own_packages_first(beside: Path) -> None:
    code = f"{OWN}from bftd import own_packages; own_packages.find_first()\nimport milp, elastic, json\n"
    said = python(beside, f"{code}print(milp.solve, elastic.step)")
    assert said.returncode == 0, said.stderr


def test_from_an_archive_too(beside: Path, tmp_path: Path) -> None:
    container.pack(str(tmp_path))
    archive = str(tmp_path / container.ARCHIVE)
    assert "bftd/own_packages.py" in zipfile.ZipFile(archive).namelist()
    before = f"import sys; sys.path.insert(0, {archive!r}); "
    for first in ("", "import elastic; "):
        said = python(beside, f"{before}{first}from bftd import elastic\nprint(elastic.__file__)")
        assert said.stdout.startswith(archive), said.stderr


def test_a_module_on_the_users_path_that_nodes_would_import_is_found(beside: Path) -> None:
    own = beside / "elastic" / "__init__.py"
    assert own_packages.namesake([str(ROOT), str(beside / "none"), str(beside)]) == str(own)
    assert own_packages.namesake([str(ROOT)]) == ""
    own.unlink()  # without it, Python finds bftd's first
    assert own_packages.namesake([str(beside)]) == ""
