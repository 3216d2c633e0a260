"""The number of out-of-memory kills in this process's control group, of cgroup version 1 or 2."""

from __future__ import annotations

from pathlib import Path

_COUNTED = "oom_kill"


class MemoryKills:
    """The count of kills since it was made; without a count in the group there are none."""

    def __init__(self, groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> None:
        self._file = _file(groups, root)
        self._before = self._count()

    def more(self) -> bool:
        """Whether there were any since the last call."""
        before, self._before = self._before, self._count()
        return self._before > before

    def _count(self) -> int:
        try:
            lines = self._file.read_text().splitlines() if self._file is not None else []
            return sum(int(count) for name, _, count in (line.partition(" ") for line in lines) if name == _COUNTED)
        except (OSError, ValueError):
            return 0


def _file(groups: Path, root: Path) -> Path | None:
    """Return the file with the count.

    In version 1 it is that of the agent's step, which has its children in it unless they are in an image. In version 2
    it is that of the whole job, which includes all steps: a container may be a step of its own.
    """
    try:
        listed = [line.split(":", 2) for line in groups.read_text().splitlines()]
    except OSError:
        return None
    paths = {names: path for _, names, path in (line for line in listed if len(line) == 3)}
    if "memory" in paths:  # version 1, or both at once
        return root / "memory" / paths["memory"].lstrip("/") / "memory.oom_control"
    if "" not in paths:
        return None
    group = Path(paths[""].lstrip("/"))
    job = next((one for one in (group, *group.parents) if one.name.startswith("job_")), group)
    return root / job / "memory.events"
