"""A check whether all nodes share a folder: each writes a small file there, and looks for those of the others."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from elastic.link.wire import Message

_TOKEN = re.compile(r"[0-9A-Za-z]{1,64}")
_NAME = re.compile(r"(?!\.{1,2}$)[\w.-]{1,255}", re.ASCII)


def write(path: str, token: str, name: str) -> None:
    """Write the mark of node `name` in `path`, which is made if it does not exist; raises OSError and ValueError."""
    folder = _folder(path, token)
    _make(folder)
    mark = folder / _checked(name)
    with open(mark, "w") as file:
        file.write(name)
        file.flush()
        os.fsync(file.fileno())


def _make(folder: Path) -> None:
    """Make a folder and its missing parents, each for its owner alone: the driver accepts no others."""
    for level in reversed([level for level in (folder, *folder.parents) if not level.is_dir()]):
        with contextlib.suppress(FileExistsError):
            os.mkdir(level, 0o700)


def read(path: str, token: str, names: Sequence[str]) -> list[str]:
    """Return those of `names` whose marks cannot be read in `path`; raises ValueError."""
    folder = _folder(path, token)
    return [name for name in names if not _is_readable(folder / _checked(name))]


def probed(message: Message, name: str) -> Message:
    """Return the answer of node `name` to a probe {"path", "token", "names" of the nodes to look for, if any}.

    It waits for the file system, so call it in a thread. `free_bytes` is -1 if unknown.
    """
    answer: Message = {"op": "probed", "token": message.get("token"), "wrote": False, "missing": [], "free_bytes": -1}
    names = [str(each) for each in message.get("names") or ()]
    try:
        path, token = str(message["path"]), str(message["token"])
        write(path, token, name)
        free = os.statvfs(path)
        answer.update(wrote=True, missing=read(path, token, names), free_bytes=free.f_bavail * free.f_frsize)
        answer["error"] = ""
    except OSError as error:
        answer.update(missing=names, error=error.strerror or str(error), errno=error.errno)
    except (KeyError, ValueError) as error:
        answer.update(missing=names, error=f"the probe cannot be understood: {error}")
    return answer


def _folder(path: str, token: str) -> Path:
    if not path.startswith("/") or not _TOKEN.fullmatch(token):
        raise ValueError(f"{path!r}, {token!r}")
    return Path(path) / f".bft-probe-{token}"


def _checked(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no node's name")
    return name


def _is_readable(mark: Path) -> bool:
    try:
        return bool(mark.read_bytes())
    except OSError:
        return False
