"""The contents of a trainer's folder: whole checkpoints, each described by its name, and files that are not whole."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from elastic.store import files

_NAME = re.compile(r"state-(\d{1,18})-(\d{1,18})-(\d{1,18})(?:-([0-9a-f]{64}))?\.pt", re.ASCII)
_ASIDE = "set-aside-"


@dataclass(frozen=True, order=True)
class CheckpointFile:
    """A whole checkpoint, described by its file's name: a separate note could be lost or torn.

    `digest` is the SHA-256 of its content; "" for one that a release before this one has saved.
    """

    step: int
    samples: int
    size_bytes: int
    digest: str = ""

    @classmethod
    def parse(cls, name: str) -> CheckpointFile | None:
        """Returns the checkpoint of a file of this name, None for a file that is no checkpoint."""
        found = _NAME.fullmatch(name)
        return cls(int(found[1]), int(found[2]), int(found[3]), found[4] or "") if found else None

    @property
    def name(self) -> str:
        """The name of its file."""
        digest = f"-{self.digest}" if self.digest else ""
        return f"state-{self.step}-{self.samples}-{self.size_bytes}{digest}.pt"


@dataclass(frozen=True)
class Contents:
    """The whole checkpoints of a folder, the newest last; the names of broken ones, of uploads, of those set aside."""

    checkpoints: tuple[CheckpointFile, ...]
    broken: tuple[str, ...]
    parts: tuple[str, ...]
    aside: tuple[str, ...]

    @property
    def newest(self) -> CheckpointFile | None:
        """The checkpoint of the highest step."""
        return self.checkpoints[-1] if self.checkpoints else None


def contents(folder: int) -> Contents:
    """Lists an open folder; raises OSError."""
    checkpoints: list[tuple[int, int, CheckpointFile]] = []
    broken, parts, aside = [], [], []
    for name in os.listdir(folder):
        if name.endswith(files.PART):
            parts.append(name)
        elif name.startswith(_ASIDE):
            aside.append(name)
        elif checkpoint := CheckpointFile.parse(name):
            try:
                there = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:  # a newer checkpoint has just replaced it
                continue
            if there.st_size == checkpoint.size_bytes and checkpoint.name == name:
                checkpoints.append((checkpoint.step, there.st_mtime_ns, checkpoint))
            else:
                broken.append(name)
    return Contents(
        tuple(checkpoint for *_, checkpoint in sorted(checkpoints)), tuple(broken), tuple(parts), tuple(aside)
    )


def set_aside(folder: int, name: str) -> str:
    """Renames a checkpoint that is not whole so that its name says so; returns the new name. Raises OSError."""
    new = f"{_ASIDE}{name}"
    os.rename(name, new, src_dir_fd=folder, dst_dir_fd=folder)
    return new
