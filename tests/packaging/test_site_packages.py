"""What a site adds to the programs' Python environment: where it is looked for, and that it comes after ours."""

from __future__ import annotations

import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_the_installation_looks_for_the_site_s_packages_after_its_own_and_outside_what_an_upgrade_replaces(
    tmp_path: Path,
) -> None:
    script = (ROOT / "tools/package/install.sh").read_text()
    line = re.search(r'^ *echo (\S+) >"\$\(echo "\$home"/lib/python3\*/site-packages\)/site\.pth"$', script, re.M)
    assert line is not None
    home, added = re.search(r"^HOME_DIR=(\S+)$", script, re.M), Path(line[1])
    assert home is not None
    assert not added.is_relative_to(home[1])
    assert str(added) in (ROOT / "docs/howto/install.md").read_text()

    environment, site = tmp_path / "home", tmp_path / "added"
    venv.create(environment, with_pip=False)
    (own,) = environment.glob("lib/python3*/site-packages")
    (own / "site.pth").write_text(f"{site}\n")
    site.mkdir()
    for name, folders in {"gurobipy": (site,), "bftd": (own, site)}.items():
        for folder in folders:
            (folder / f"{name}.py").write_text("")
    code = "import bftd, gurobipy; print(bftd.__file__, gurobipy.__file__)"
    command = [str(environment / "bin" / Path(sys.executable).name), "-I", "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.stdout.split() == [str(own / "bftd.py"), str(site / "gurobipy.py")], found.stderr
