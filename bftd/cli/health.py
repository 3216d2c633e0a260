"""The daemon's health as a monitoring plug-in tells it: a level, a line with figures, and what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["OK", "WARNING", "CRITICAL"]
LEVELS: tuple[Level, ...] = ("OK", "WARNING", "CRITICAL")

# A controller that is restarted is away for less than a minute, and one under load is read every 30 s.
SNAPSHOT_WARNING_S = 60.0
SNAPSHOT_CRITICAL_S = 300.0
# Growth stops for a moment now and then, after a preemption say; where it does for this long, nothing is harvested.
HELD_WARNING_S = 600.0
# Of the ledger's cap, where it has one.
LEDGER_WARNING = 0.9
# A figure of all problems would be longer than a line of a pager.
_SHOWN_MOST = 5


@dataclass(frozen=True)
class Health:
    """What a check found: the worst level, each problem with its own level, and figures by name."""

    problems: tuple[tuple[Level, str], ...]
    figures: Mapping[str, str]

    @property
    def level(self) -> Level:
        """The worst level of all problems."""
        return max((level for level, _ in self.problems), key=LEVELS.index, default="OK")

    @property
    def code(self) -> int:
        """The exit code: 0, 1 or 2."""
        return LEVELS.index(self.level)

    @property
    def line(self) -> str:
        """One line of text, with the figures after a bar."""
        worst_first = sorted(self.problems, key=lambda problem: -LEVELS.index(problem[0]))
        texts = [text for _, text in worst_first]
        more = [f"{len(texts) - _SHOWN_MOST} more"] if len(texts) > _SHOWN_MOST else []
        said = "; ".join(texts[:_SHOWN_MOST] + more) or "all is well"
        figures = " ".join(f"{name}={value}" for name, value in self.figures.items())
        return f"BFTD {self.level}: {said.replace('|', '/')}" + (f" | {figures}" if figures else "")

    def to_json(self) -> dict[str, Any]:
        """As `bft status --check --json` prints it."""
        problems = [{"level": level, "text": text} for level, text in self.problems]
        return {"level": self.level, "code": self.code, "problems": problems, "figures": dict(self.figures)}


def unreachable(why: str) -> Health:
    """The health of a daemon that did not answer."""
    return Health((("CRITICAL", why),), {})


def judged(status: Mapping[str, Any]) -> Health:
    """The health that an answer of `GET /v1/status` shows."""
    problems = [*_snapshot(status), *(("CRITICAL", alarm["text"]) for alarm in status.get("alarms", ()))]
    problems += [("WARNING", pause["text"]) for pause in status.get("pauses", ())]
    problems += [*_hold(status), *_nodes_and_jobs(status), *_ledger(status)]
    return Health(tuple(problems), _figures(status))


def _snapshot(status: Mapping[str, Any]) -> list[tuple[Level, str]]:
    age_s = status["snapshot_age_s"]
    if age_s is None:
        return [("CRITICAL", "Slurm was not read since the daemon started")]
    if age_s <= SNAPSHOT_WARNING_S:
        return []
    level: Level = "CRITICAL" if age_s > SNAPSHOT_CRITICAL_S else "WARNING"
    return [(level, f"Slurm was not read for {age_s:.0f} s")]


def _hold(status: Mapping[str, Any]) -> list[tuple[Level, str]]:
    held_s = status.get("held_s", 0.0)
    if not status["hold"] or held_s <= HELD_WARNING_S:
        return []
    return [("WARNING", f"nothing grows for {held_s:.0f} s: {status['hold']}")]


def _nodes_and_jobs(status: Mapping[str, Any]) -> list[tuple[Level, str]]:
    found: list[tuple[Level, str]] = []
    if quarantined := sum("quarantine" in node["why"] for node in status["nodes"]):
        found.append(("WARNING", f"{quarantined} node{'s are' if quarantined > 1 else ' is'} in quarantine"))
    if strays := len(status.get("strays", ())):
        found.append(("WARNING", f"no lease stands behind {strays} job{'s' if strays > 1 else ''}"))
    if silent := status.get("silent", ()):
        found.append(("WARNING", f"no word from the driver of {', '.join(silent)}"))
    return found


def _ledger(status: Mapping[str, Any]) -> list[tuple[Level, str]]:
    ledger = status.get("ledger") or {}
    if failure := ledger.get("failure"):
        return [("CRITICAL", failure)]
    used, most = ledger.get("bytes"), ledger.get("max_bytes")
    if not used or not most or used < LEDGER_WARNING * most:
        return []
    return [("WARNING", f"the ledger has {used / most:.0%} of the size that it may have (max_bytes)")]


def _figures(status: Mapping[str, Any]) -> dict[str, str]:
    nodes, backs = status["nodes"], status["give_back_s"]
    figures = {
        "nodes": str(len(nodes)),
        "lent": str(sum(node["lease"] is not None for node in nodes)),
        "free": str(sum(node["in_pool"] and node["lease"] is None for node in nodes)),
        "trainers": str(sum(trainer["state"] != "finished" for trainer in status["trainers"])),
    }
    if status["snapshot_age_s"] is not None:
        age_s = max(0.0, status["snapshot_age_s"])
        figures["snapshot_age"] = f"{age_s:.1f}s;{SNAPSHOT_WARNING_S:.0f};{SNAPSHOT_CRITICAL_S:.0f}"
    if backs["count"]:
        figures["give_back_p99"] = f"{backs['p99']:.3f}s"
    return figures
