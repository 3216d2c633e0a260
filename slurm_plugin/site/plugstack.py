"""The SPANK plug-in on this host: its lines in plugstack.conf, and whether this host's Slurm loads it.

Slurm loads a plug-in only if its major and minor release match (measured on 22.05.8: 22.05.9 is loaded, 22.06 is not).
For any other, and for a missing one, `sbatch`, `salloc` and `srun` print an error, and continue if the line says
optional. A plug-in carries the release that it was compiled for as a number, `plugin_version`, and so do Slurm's own.
It is read from the files: nothing is loaded.
"""

from __future__ import annotations

import glob
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from slurm_plugin.read.settings import is_nothing
from slurm_plugin.site.model import SiteFile

NAME = "spank_bftd.so"
# The file into which the packages put its line.
PACKAGED = "/etc/slurm/plugstack.conf.d/bftd.conf"
# The prefix of a line that was taken out, so that it can be restored unchanged. The packages' scripts write it too.
OUT = "#taken out by bft site plugin: "

_INCLUDE = re.compile(r"^\s*include\s+(\S+)", re.MULTILINE)
_PLUGIN = re.compile(r"^\s*(?:required|optional)\s+(\S+)", re.MULTILINE)
_LINE = re.compile(rf"^({OUT})?[ \t]*(?:required|optional)[ \t]+((?:\S*/)?{re.escape(NAME)})(?!\S)", re.MULTILINE)
_DEEPEST_INCLUDE = 4
# Every host with Slurm has some of these, and only Slurm ships them.
_SLURMS_OWN = ("select_*.so", "sched_*.so")
# No plug-in is this large.
_BYTES_MOST = 64 * 2**20


def read_file(path: Path) -> SiteFile:
    """Read a file beside slurm.conf, if this user may."""
    try:
        return SiteFile(str(path), "present", path.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        return SiteFile(str(path), "absent")
    except OSError:
        return SiteFile(str(path), "unreadable")


def read(config: Mapping[str, str]) -> SiteFile:
    """Return plugstack.conf with its includes; `config` is the output of `scontrol show config` by key."""
    named = config.get("PlugStackConfig", "")
    path = Path(config.get("SLURM_CONF", "")).parent / "plugstack.conf" if is_nothing(named) else Path(named)
    file = read_file(path)
    return SiteFile(file.path, file.state, _with_includes(file.text, path.parent))


def missing(stack: SiteFile, folders: str) -> tuple[str, ...]:
    """Return the plug-ins of plugstack.conf missing on this host; a bare name is looked up in Slurm's PluginDir."""
    places = [_places(name, folders) for name in _PLUGIN.findall(stack.text)]
    return tuple(str(found[0]) for found in places if not any(map(os.path.exists, found)))


def is_named(stack: SiteFile) -> bool:
    """Whether plugstack.conf has a line of our plug-in that is not taken out."""
    return any(Path(name).name == NAME for name in _PLUGIN.findall(stack.text))


def fault(stack: SiteFile, folders: str) -> str:
    """Return the reason why our plug-in does not fit this host's Slurm; "" if it fits, is missing, or cannot be read.

    A host without users of Slurm's commands may do without it: `missing` reports that.
    """
    found = (place(name, folders) for name in _PLUGIN.findall(stack.text) if Path(name).name == NAME)
    return next((why for plugin in found if os.path.exists(plugin) and (why := unfit(plugin, folders))), "")


def unfit(plugin: Path, folders: str) -> str | None:
    """Return the reason why Slurm's commands print an error for a plug-in; "" if they load it, None if unknown."""
    if not os.path.exists(plugin):
        # a folder that this user cannot enter hides its contents
        return f"{plugin} is not there" if os.access(plugin.parent, os.X_OK) else None
    found = release_of(plugin)
    slurms = [release_of(path) for folder in folders.split(":") for path in _slurms_own(Path(folder))]
    here = max((release for release in slurms if release is not None), default=None)
    if found is None or here is None:
        return None
    return "" if found == here else f"{plugin} is for Slurm {_text(found)}, and this host has {_text(here)}"


class PluginLine(NamedTuple):
    """The line of our plug-in: the file that it names, and whether it is active or was taken out."""

    name: str
    on: bool


def line_of(file: Path) -> PluginLine | None:
    """Return the line of our plug-in in a plugstack file, None if there is none; raise OSError."""
    found = _LINE.search(file.read_text(encoding="utf-8", errors="surrogateescape"))
    return PluginLine(found[2], on=not found[1]) if found else None


def place(name: str, folders: str) -> Path:
    """Return the path of the plug-in that a line names, or the path where it should be."""
    places = _places(name, folders)
    return next(filter(os.path.exists, places), places[0])


def switch(file: Path, on: bool) -> None:
    """Activate the line of our plug-in in a plugstack file, or take it out; raise OSError.

    The file is replaced atomically, so that no command reads half of it.
    """
    text = file.read_text(encoding="utf-8", errors="surrogateescape")
    new = _LINE.sub(lambda line: ("" if on else OUT) + line[0].removeprefix(OUT), text)
    if new == text:
        return
    other = file.with_name(f"{file.name}.new")  # plugstack.conf includes *.conf alone
    other.write_text(new, encoding="utf-8", errors="surrogateescape")
    os.chmod(other, file.stat().st_mode & 0o777)
    os.replace(other, file)


def release_of(plugin: Path) -> tuple[int, int] | None:
    """Return the major and minor Slurm release a plug-in was compiled for, as in (22, 5); None if it cannot be read."""
    try:
        with plugin.open("rb") as file:
            data = file.read(_BYTES_MOST)
        number = _plugin_version(data)
    except (OSError, struct.error, ValueError, IndexError, OverflowError):
        return None
    return (number >> 16, number >> 8 & 0xFF)


def _plugin_version(data: bytes) -> int:
    """Return the value of the symbol of that name in a 64-bit shared object."""
    if data[:5] != b"\x7fELF\x02":
        raise ValueError("no shared object of 64 bits")
    order = "<" if data[5] == 1 else ">"
    (offset,) = struct.unpack_from(f"{order}Q", data, 0x28)
    size, count = struct.unpack_from(f"{order}HH", data, 0x3A)
    # fields of a section: name, type, flags, address, offset, size, link, info, alignment, size of an entry
    sections = [struct.unpack_from(f"{order}IIQQQQIIQQ", data, offset + at * size) for at in range(count)]
    for section in sections:
        if section[1] != 11:  # SHT_DYNSYM, the exported symbols
            continue
        names = sections[section[6]][4]
        for at in range(section[4], section[4] + section[5], 24):
            name, _, _, index, value, _ = struct.unpack_from(f"{order}IBBHQQ", data, at)
            if data[names + name : names + name + 15] == b"plugin_version\0":
                _, _, _, address, begin, _, *_ = sections[index]
                (number,) = struct.unpack_from(f"{order}I", data, begin + value - address)
                return int(number)
    raise ValueError("it tells no plugin_version")


def _slurms_own(folder: Path) -> Iterator[Path]:
    for pattern in _SLURMS_OWN:
        yield from folder.glob(pattern)


def _places(name: str, folders: str) -> list[Path]:
    return [Path(name)] if name.startswith("/") else [Path(folder) / name for folder in folders.split(":")]


def _text(release: Iterable[int]) -> str:
    return ".".join(f"{part:02d}" for part in release)


def _with_includes(text: str, folder: Path, depth: int = 0) -> str:
    """Return the text of a plugstack file and of all files that it includes, which may be named by patterns."""
    parts = [text]
    if depth < _DEEPEST_INCLUDE:
        for pattern in _INCLUDE.findall(text):
            # by glob(3), as Slurm does, which rejects no pattern: the daemon reads this every minute
            for name in sorted(glob.glob(os.path.join(glob.escape(str(folder)), pattern))):
                parts.append(_with_includes(read_file(Path(name)).text, folder, depth + 1))
    return "\n".join(parts)
