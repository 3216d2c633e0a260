"""The SPANK plug-in on this host: its lines in plugstack.conf, and whether this host's Slurm loads it.

Slurm loads a plug-in only where major and minor release of both are the same (measured on 22.05.8: 22.05.9 is loaded,
22.06 is not). Of any other, and of one that is not there, `sbatch`, `salloc` and `srun` print an error, and go on where
the line says optional. A plug-in carries the release that it was compiled for as a number, `plugin_version`, and so
do Slurm's own. It is read from the files: nothing is loaded.
"""

from __future__ import annotations

import glob
import os
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from slurm_plugin.settings import is_nothing
from slurm_plugin.site.model import SiteFile

NAME = "spank_bftd.so"
# Where the packages put its line.
PACKAGED = "/etc/slurm/plugstack.conf.d/bftd.conf"
# What stands before a line that was taken out, so that it comes back as it was. The packages' scripts write it too.
OUT = "#taken out by bft site plugin: "

_INCLUDE = re.compile(r"^\s*include\s+(\S+)", re.MULTILINE)
_PLUGIN = re.compile(r"^\s*(?:required|optional)\s+(\S+)", re.MULTILINE)
_LINE = re.compile(rf"^({OUT})?[ \t]*(?:required|optional)[ \t]+((?:\S*/)?{re.escape(NAME)})(?!\S)", re.MULTILINE)
_DEEPEST_INCLUDE = 4
# Slurm has some of these on every host, and nobody else makes them.
_SLURMS_OWN = ("select_*.so", "sched_*.so")
# No plug-in is so large.
_BYTES_MOST = 64 * 2**20


def read_file(path: Path) -> SiteFile:
    """A file beside slurm.conf, as far as this user can read it."""
    try:
        return SiteFile(str(path), "present", path.read_text(encoding="utf-8", errors="replace"))
    except FileNotFoundError:
        return SiteFile(str(path), "absent")
    except OSError:
        return SiteFile(str(path), "unreadable")


def read(config: Mapping[str, str]) -> SiteFile:
    """plugstack.conf with what it includes; `config` is what `scontrol show config` shows."""
    named = config.get("PlugStackConfig", "")
    path = Path(config.get("SLURM_CONF", "")).parent / "plugstack.conf" if is_nothing(named) else Path(named)
    file = read_file(path)
    return SiteFile(file.path, file.state, _with_includes(file.text, path.parent))


def missing(stack: SiteFile, folders: str) -> tuple[str, ...]:
    """Plug-ins of plugstack.conf that are not on this host; a bare name is looked for in Slurm's PluginDir."""
    places = [_places(name, folders) for name in _PLUGIN.findall(stack.text)]
    return tuple(str(found[0]) for found in places if not any(map(os.path.exists, found)))


def fault(stack: SiteFile, folders: str) -> str:
    """That our plug-in is not for this host's Slurm; "" where it is, or is not there, and where that cannot be read.

    A host on which nobody calls Slurm's commands may do without it: `missing` tells that.
    """
    found = (place(name, folders) for name in _PLUGIN.findall(stack.text) if Path(name).name == NAME)
    return next((why for plugin in found if os.path.exists(plugin) and (why := unfit(plugin, folders))), "")


def unfit(plugin: Path, folders: str) -> str | None:
    """Why Slurm's commands print an error for a plug-in; "" where they load it, None where that cannot be read."""
    if not os.path.exists(plugin):
        # a folder that this user cannot enter hides what is in it
        return f"{plugin} is not there" if os.access(plugin.parent, os.X_OK) else None
    found = release_of(plugin)
    slurms = [release_of(path) for folder in folders.split(":") for path in _slurms_own(Path(folder))]
    here = max((release for release in slurms if release is not None), default=None)
    if found is None or here is None:
        return None
    return "" if found == here else f"{plugin} is for Slurm {_text(found)}, and this host has {_text(here)}"


class Line(NamedTuple):
    """The line of our plug-in: the file that it names, and whether it is in use or was taken out."""

    name: str
    on: bool


def line_of(file: Path) -> Line | None:
    """The line of our plug-in in a plugstack file, None where there is none; raises OSError."""
    found = _LINE.search(file.read_text(encoding="utf-8", errors="surrogateescape"))
    return Line(found[2], on=not found[1]) if found else None


def place(name: str, folders: str) -> Path:
    """Where a plug-in is, or should be, that a line names."""
    places = _places(name, folders)
    return next(filter(os.path.exists, places), places[0])


def switch(file: Path, on: bool) -> None:
    """Put the line of our plug-in in a plugstack file to use, or out of it; raises OSError.

    The file is replaced as a whole, so that no command reads half of it.
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
    """Major and minor release of Slurm that a plug-in was compiled for, as in (22, 5); None where it cannot be read."""
    try:
        with plugin.open("rb") as file:
            data = file.read(_BYTES_MOST)
        number = _plugin_version(data)
    except (OSError, struct.error, ValueError, IndexError, OverflowError):
        return None
    return (number >> 16, number >> 8 & 0xFF)


def _plugin_version(data: bytes) -> int:
    """The value of the symbol of that name in a shared object of 64 bits."""
    if data[:5] != b"\x7fELF\x02":
        raise ValueError("no shared object of 64 bits")
    order = "<" if data[5] == 1 else ">"
    (offset,) = struct.unpack_from(f"{order}Q", data, 0x28)
    size, count = struct.unpack_from(f"{order}HH", data, 0x3A)
    # of each: name, type, flags, address, offset, size, link, info, alignment, size of an entry
    sections = [struct.unpack_from(f"{order}IIQQQQIIQQ", data, offset + at * size) for at in range(count)]
    for section in sections:
        if section[1] != 11:  # the symbols that are told to whoever loads it
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
    """A plugstack file with the text of the files that it includes, which may be named by patterns."""
    parts = [text]
    if depth < _DEEPEST_INCLUDE:
        for pattern in _INCLUDE.findall(text):
            # as Slurm does, by glob(3), which refuses no pattern: the daemon reads this every minute
            for name in sorted(glob.glob(os.path.join(glob.escape(str(folder)), pattern))):
                parts.append(_with_includes(read_file(Path(name)).text, folder, depth + 1))
    return "\n".join(parts)
