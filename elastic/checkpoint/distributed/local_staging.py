"""A folder on the node's own disk that a checkpoint is written to first, if the site names one."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import shutil
from dataclasses import dataclass
from pathlib import Path

_MARGIN = 1.1
_swept: set[Path] = set()
_said: set[str] = set()


@dataclass(frozen=True)
class StagingFolder:
    """A folder for one worker's files of one version until they are copied to their final place."""

    folder: Path

    @classmethod
    def of(cls, name: str, size_bytes: int, rank: int) -> StagingFolder | None:
        """Return a folder for this many bytes; None if none is named, or if its disk is too full (reported once)."""
        root = os.environ.get("BFT_STATE_STAGE", "")
        if not root:
            return None
        mine = Path(root) / f"bft-{os.getuid()}-{_trainer()}-{_worker()}"
        try:
            _make_own(Path(root))
            if mine not in _swept:
                # The remains of a killed worker; no other worker uses this folder.
                shutil.rmtree(mine, ignore_errors=True)
                _swept.add(mine)
            mine.mkdir(mode=0o700, exist_ok=True)
            if mine.lstat().st_uid != os.getuid():
                raise PermissionError(13, "it is another user's", str(mine))
            free = os.statvfs(mine)
            needed = _MARGIN * size_bytes * int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            if free.f_bavail * free.f_frsize < needed:
                raise OSError(28, f"{needed / 1e9:.1f} GB are wanted there", str(mine))
            folder = mine / f"{name}.{rank}"
            folder.mkdir(mode=0o700)
        except OSError as error:
            _say_once(
                f"checkpoints are not staged in {root} ({error.strerror}): they are written to their place at once"
            )
            return None
        return cls(folder)

    def remove(self) -> None:
        """Remove the staged files."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _make_own(root: Path) -> None:
    """Make the user's own folder if the site names one for each user ({user}), and no other."""
    levels = [root, *root.parents]
    own = next((number for number, level in enumerate(levels) if level.name == _user()), -1)
    for level in reversed(levels[: own + 1]):
        if not level.is_dir():
            with contextlib.suppress(FileExistsError):
                level.mkdir(mode=0o700)


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _trainer() -> str:
    return hashlib.blake2b(os.environ.get("BFT_STATE_PATH", "").encode(), digest_size=6).hexdigest()


def _worker() -> str:
    # With the node's name, since several nodes may be one host.
    node = os.environ.get("SLURMD_NODENAME", "").replace("/", "-")
    return f"{node}-{os.environ.get('LOCAL_RANK') or os.environ.get('BFT_LOCAL_RANK', '0')}"


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        with contextlib.suppress(OSError):
            os.write(2, f"bft: {text}\n".encode(errors="backslashreplace"))
