"""The problems of a daemon: one list, which `bft status --check` shows and `[notify] command` receives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Level = Literal["OK", "WARNING", "CRITICAL"]
LEVELS: tuple[Level, ...] = ("OK", "WARNING", "CRITICAL")

# A restarted controller is away for less than a minute, and one under load is read every 30 s.
SNAPSHOT_WARNING_S = 60.0
SNAPSHOT_CRITICAL_S = 300.0
# Growth stops for a moment now and then, for example after a preemption; if it stops this long, nothing is harvested.
HELD_WARNING_S = 600.0
# A share of the ledger's size limit, if it has one.
LEDGER_WARNING = 0.9
# A list of all problems would be longer than a line of a pager.
_SHOWN_MOST = 5


@dataclass(frozen=True, slots=True)
class HealthProblem:
    """One problem; `kind` and `name` stay the same for as long as it lasts, whatever its text says."""

    level: Level
    text: str
    kind: str
    name: str = ""

    @property
    def key(self) -> str:
        """The identity of the problem among all others."""
        return f"{self.kind}:{self.name}" if self.name else self.kind


@dataclass(frozen=True)
class Health:
    """The result of a check: the worst level, each problem with its own level, and figures by name."""

    problems: tuple[HealthProblem, ...]
    figures: Mapping[str, str]

    @property
    def level(self) -> Level:
        """The worst level of all problems."""
        return max((problem.level for problem in self.problems), key=LEVELS.index, default="OK")

    @property
    def code(self) -> int:
        """The exit code: 0, 1 or 2."""
        return LEVELS.index(self.level)

    @property
    def line(self) -> str:
        """The result as one line of text, with the figures after a bar."""
        worst_first = sorted(self.problems, key=lambda problem: -LEVELS.index(problem.level))
        texts = [problem.text for problem in worst_first]
        more = [f"{len(texts) - _SHOWN_MOST} more"] if len(texts) > _SHOWN_MOST else []
        message = "; ".join(texts[:_SHOWN_MOST] + more) or "all is well"
        figures = " ".join(f"{name}={value}" for name, value in self.figures.items())
        return f"BFTD {self.level}: {message.replace('|', '/')}" + (f" | {figures}" if figures else "")

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that `bft status --check --json` prints."""
        problems = [{"level": each.level, "kind": each.kind, "text": each.text} for each in self.problems]
        return {"level": self.level, "code": self.code, "problems": problems, "figures": dict(self.figures)}


def unreachable(why: str) -> Health:
    """Return the health of a daemon that did not answer."""
    return Health((HealthProblem("CRITICAL", why, "unreachable"),), {})


def judged(status: Mapping[str, Any]) -> Health:
    """Return the health that an answer of `GET /v1/status` shows."""
    return Health(tuple(problems(status)), _figures(status))


def problems(status: Mapping[str, Any]) -> Iterator[HealthProblem]:
    """Yield the problems in a status; of its nodes only those in quarantine (by their `why`) count."""
    yield from _snapshot(status)
    for alarm in status.get("alarms", ()):
        # an older daemon puts the kind "daemon" and the name into one field
        kind, _, name = alarm.get("kind", "alarm").partition(" ")
        # plans are still made if another solver replaces the one that fails
        level: Level = "WARNING" if kind == "solver" else "CRITICAL"
        yield HealthProblem(level, alarm["text"], kind, alarm.get("node") or name)
    for pause in status.get("pauses", ()):
        # pauses of an older daemon can be identified by their text only
        named = [pause["kind"], *pause["names"]] if "kind" in pause else [pause["text"]]
        yield HealthProblem("WARNING", pause["text"], "pause", " ".join(named))
    yield from (*_hold(status), *_nodes_and_jobs(status), *_earmarks(status), *_ledger(status))


def _snapshot(status: Mapping[str, Any]) -> Iterator[HealthProblem]:
    age_s = status["snapshot_age_s"]
    if age_s is None:
        yield HealthProblem("CRITICAL", "Slurm was not read since the daemon started", "snapshot")
    elif age_s > SNAPSHOT_WARNING_S:
        level: Level = "CRITICAL" if age_s > SNAPSHOT_CRITICAL_S else "WARNING"
        yield HealthProblem(level, f"Slurm was not read for {age_s:.0f} s", "snapshot")


def _hold(status: Mapping[str, Any]) -> Iterator[HealthProblem]:
    held_s = status.get("held_s", 0.0)
    if status["hold"] and held_s > HELD_WARNING_S:
        yield HealthProblem("WARNING", f"nothing grows for {held_s:.0f} s: {status['hold']}", "hold")


def _nodes_and_jobs(status: Mapping[str, Any]) -> Iterator[HealthProblem]:
    if quarantined := sum("quarantine" in node["why"] for node in status["nodes"]):
        text = f"{quarantined} node{'s are' if quarantined > 1 else ' is'} in quarantine"
        yield HealthProblem("WARNING", text, "quarantine")
    if count := len(status.get("orphan_jobs") or status.get("strays", ())):  # daemons of 0.1 send strays
        yield HealthProblem("WARNING", f"no lease stands behind {count} job{'s' if count > 1 else ''}", "stray")
    if silent := status.get("silent", ()):
        yield HealthProblem("WARNING", f"no word from the driver of {', '.join(silent)}", "silent")


def _earmarks(status: Mapping[str, Any]) -> Iterator[HealthProblem]:
    if wary := status.get("earmarks_wary"):
        yield HealthProblem("WARNING", wary, "earmarks")


def _ledger(status: Mapping[str, Any]) -> Iterator[HealthProblem]:
    ledger = status.get("ledger") or {}
    if failure := ledger.get("failure"):
        yield HealthProblem("CRITICAL", failure, "ledger")
        return
    used, most = ledger.get("bytes"), ledger.get("max_bytes")
    if used and most and used >= LEDGER_WARNING * most:
        text = f"the ledger has {used / most:.0%} of the size that it may have (max_bytes)"
        yield HealthProblem("WARNING", text, "ledger_size")


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
