"""Which release of Slurm a SPANK plug-in is for, read from its file, and its line in plugstack.conf."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest

from slurm_plugin.sandbox.cluster import compiled_plugin
from slurm_plugin.site import plugstack
from slurm_plugin.site.model import SiteFile
from tests.slurm_plugin.plugins import require_compiled
from tests.support.messages import wording

SLURMS_OWN = Path("/usr/lib/x86_64-linux-gnu/slurm-wlm")


def shared_object(release: int, order: str = "<", symbol: bytes = b"plugin_version") -> bytes:
    """A shared object of 64 bits that tells a release as Slurm's plug-ins do, and nothing else."""
    names = b"\0other\0" + symbol + b"\0"
    number = struct.pack(f"{order}II", 7, release)
    # its sections lie at another address than in the file
    symbols = struct.pack(f"{order}IBBHQQ", 1, 17, 0, 1, 0x1000, 4) + struct.pack(
        f"{order}IBBHQQ", 7, 17, 0, 1, 0x1004, 4
    )
    parts = [number, names, symbols]
    at = [64 + sum(map(len, parts[:before])) for before in range(3)]
    heads = [
        (0,) * 10,
        (0, 1, 2, 0x1000, at[0], len(number), 0, 0, 4, 0),
        (0, 3, 0, 0, at[1], len(names), 0, 0, 1, 0),
        (0, 11, 0, 0, at[2], len(symbols), 2, 0, 8, 24),
    ]
    head = bytearray(64)
    head[:6] = b"\x7fELF\x02" + (b"\x01" if order == "<" else b"\x02")
    struct.pack_into(f"{order}Q", head, 0x28, 64 + sum(map(len, parts)))
    struct.pack_into(f"{order}HH", head, 0x3A, 64, len(heads))
    return bytes(head) + b"".join(parts) + b"".join(struct.pack(f"{order}IIQQQQIIQQ", *each) for each in heads)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Slurm's plug-ins, of 23.02.4."""
    made = tmp_path / "slurm"
    made.mkdir()
    (made / "select_linear.so").write_bytes(shared_object(0x170204))
    return made


def stack(*lines: str) -> SiteFile:
    return SiteFile("/p.conf", "present", "".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_plug_in_tells_its_release_without_being_loaded(tmp_path: Path, order: str) -> None:
    plugin = tmp_path / "a.so"
    plugin.write_bytes(shared_object(0x180B05, order))
    assert plugstack.release_of(plugin) == (24, 11)


def test_a_file_that_is_no_plug_in_or_half_of_one_tells_nothing(tmp_path: Path) -> None:
    plugin = tmp_path / "a.so"
    whole = shared_object(0x180B05)
    parts = [whole[:cut] for cut in range(len(whole))]
    wrong = [whole[:6] + bytes(255 - byte for byte in whole[6:]), shared_object(0x180B05, symbol=b"plugin_versio_")]
    for data in parts + wrong:
        plugin.write_bytes(data)
        assert plugstack.release_of(plugin) is None
    plugin.unlink()
    assert plugstack.release_of(plugin) is None


def test_a_plug_in_of_another_release_is_a_fault_and_one_of_another_bug_fix_is_none(folder: Path) -> None:
    plugin = folder / plugstack.NAME
    line, folders = stack("optional other.so", "optional spank_bftd.so bft=/usr/bin/bft"), f"/none:{folder}"
    for release, found in ((0x170204, ""), (0x170209, ""), (0x160508, "22.05"), (0x170B00, "23.11")):
        plugin.write_bytes(shared_object(release))
        told = wording("slurm_plugin.plugstack.stale", plugin=plugin, found=found, here="23.02") if found else ""
        assert plugstack.fault(line, folders) == told
        assert plugstack.fault(stack(f"required\t{plugin}"), folders) == told
        assert plugstack.fault(stack("#optional spank_bftd.so"), folders) == ""


def test_what_cannot_be_read_is_no_fault_and_nothing_is_changed_for_it(folder: Path, tmp_path: Path) -> None:
    plugin = folder / plugstack.NAME
    assert plugstack.fault(stack("optional spank_bftd.so"), str(folder)) == "", "`missing` tells of it"
    assert plugstack.unfit(plugin, str(folder)) == wording("slurm_plugin.plugstack.not_there", plugin=plugin)
    plugin.write_text("no plug-in")
    assert plugstack.unfit(plugin, str(folder)) is None
    plugin.write_bytes(shared_object(0x160508))
    assert plugstack.unfit(plugin, str(tmp_path)) is None, "of Slurm itself nothing is known there"


@pytest.mark.parametrize("pattern", ["/", ".", "//etc/none.conf", "**.d/*.conf", "/none/**x", "[", "conf.d"])
def test_a_file_that_includes_what_no_pattern_should_be_is_read_on(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "a.conf").write_text("optional a.so\n")
    (tmp_path / "plugstack.conf").write_text(f"include {pattern}\ninclude conf.d/*.conf\n")
    found = plugstack.read({"SLURM_CONF": str(tmp_path / "slurm.conf")})
    assert set(plugstack.missing(found, "/none")) == {"/none/a.so"}


def test_a_line_is_taken_out_and_comes_back_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "bftd.conf"
    text = "# ours\noptional  spank_bftd.so bft=/opt/bft\noptional spank_bftd.so.old\noptional /x/other.so\n"
    file.write_text(text)
    file.chmod(0o640)
    assert plugstack.line_of(file) == ("spank_bftd.so", True)
    for _ in range(2):
        plugstack.switch(file, on=False)
        assert file.read_text() == text.replace("optional  spank", f"{plugstack.OUT}optional  spank")
    assert plugstack.line_of(file) == ("spank_bftd.so", False)
    assert plugstack.fault(SiteFile(str(file), "present", file.read_text()), "/none") == ""
    for _ in range(2):
        plugstack.switch(file, on=True)
        assert file.read_text() == text
    assert file.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.cluster
@pytest.mark.parametrize(("micro", "minor"), [(1, 0), (0, 1), (0, 0)])
def test_what_is_said_of_a_plug_in_is_what_slurm_itself_does_with_it(tmp_path: Path, micro: int, minor: int) -> None:
    require_compiled()
    release = plugstack.release_of(compiled_plugin())
    assert release is not None
    data = compiled_plugin().read_bytes()
    (number,) = (n for n in range(256) if data.count(struct.pack("<I", release[0] << 16 | release[1] << 8 | n)) == 1)
    known = release[0] << 16 | release[1] << 8 | number
    plugin = tmp_path / plugstack.NAME
    plugin.write_bytes(data.replace(struct.pack("<I", known), struct.pack("<I", known + micro + (minor << 8))))
    (tmp_path / "plugstack.conf").write_text(f"optional {plugin}\n")
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=c\nSlurmctldHost=localhost\nAuthType=auth/none\n")
    done = subprocess.run(
        ["sbatch", "--help"], env={"PATH": "/usr/bin:/bin", "SLURM_CONF": str(conf)}, capture_output=True, text=True,
        timeout=240, check=True,
    )  # fmt: skip
    here = plugstack.read({"SLURM_CONF": str(conf)})
    assert bool(plugstack.fault(here, str(SLURMS_OWN))) == ("Incompatible" in done.stderr) == bool(minor)
