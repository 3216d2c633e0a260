"""History as `GET /v1/history` returns it: means over steps of time, read from the ledger beside the loop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from bftd.base.errors import BftError
from bftd.core.sampling import NODE_STATES, PoolSample
from bftd.ledger.history.table import COARSE_S, FINE_S, KEEP_S
from bftd.ledger.reader import LedgerReader

FORMAT = 1
# Steps to choose from if none is asked for: the first that makes no more than POINTS_USUAL points.
STEPS_S = (60, 300, 600, 1_800, 3_600, 21_600, 86_400)
POINTS_USUAL = 300
# The most points of an answer, and the most trainers in all points together.
POINTS_MOST = 1_500
TRAINERS_MOST = 60_000
# The name that replaces all trainers that the caller may not see.
HIDDEN = "(private)"

# A record belongs to the step in which its middle lies. It ends after the step begins, which lets SQLite begin there.
_STEP = "(history.at_s - span_s / 2) / :step * :step"
_WITHIN = (
    "history.at_s >= :since AND history.at_s <= :now AND "
    "history.at_s - span_s / 2 >= :since AND history.at_s - span_s / 2 < :until"
)
_POINTS = (
    f"SELECT {_STEP}, sum(span_s), {', '.join(f'sum({state} * span_s)' for state in NODE_STATES)}, "
    f"sum(running * span_s), sum(pool_s), sum(used_s), sum(training_s) "
    f"FROM history WHERE {_WITHIN} GROUP BY 1 ORDER BY 1"
)
_TRAINERS = (
    f"SELECT {_STEP}, trainer, sum(working * span_s), sum(history_points.leased * span_s), sum(rate * span_s), "
    "max(step), max(samples) "
    f"FROM history JOIN history_points USING (at_s) WHERE {_WITHIN} GROUP BY 1, 2 LIMIT {TRAINERS_MOST + 1}"
)
# Uses the index of kinds, whose rows are in the order of time.
_STARTS = (
    "SELECT CAST(at_s AS INTEGER) / :step * :step, count(*), total(json_extract(data, '$.delay_s')) FROM events "
    "WHERE kind = 'regular_start' AND rowid > :after AND at_s >= :since AND at_s < :until AND at_s <= :now GROUP BY 1"
)
_MEANS = ("working", "leased", "samples_per_s")
_LAST = ("step", "samples")
_NAMES = (*_MEANS, *_LAST)
# If nobody looked for longer than this, nobody knows what was.
LOOKED_S = 180.0


class TooMuch(BftError):
    """A request for more than one answer holds."""


@dataclass(frozen=True, slots=True)
class HistoryRequest:
    """A request for the time from `since_s` to `until_s`, in steps of `step_s` seconds (None: a fitting step).

    `trainers` says whether to include the trainers, `sees` whether the caller may know of a user. Nothing later than
    `now_s` is returned.
    """

    since_s: float
    until_s: float
    now_s: float
    step_s: float | None = None
    trainers: bool = True
    sees: Callable[[str], bool] = lambda _: True


def read(reader: LedgerReader, asked: HistoryRequest) -> dict[str, Any]:
    """Return the answer without its windows; raises TooMuch, TooSlow and LedgerError."""
    step_s = _step(asked)
    values = {
        "step": step_s,
        "since": int(asked.since_s) // step_s * step_s,
        "until": int(asked.until_s) + 1,
        "now": int(asked.now_s),
    }
    after = reader.before(values["since"])
    with reader.opened() as db:
        points = db.execute(_POINTS, values).fetchall()
        found = db.execute(_TRAINERS, values).fetchall() if asked.trainers else []
        starts = {at_s: values_at for at_s, *values_at in db.execute(_STARTS, values | {"after": after})}
        named = db.execute("SELECT key, id, name, user FROM history_trainers").fetchall() if found else []
    if len(found) > TRAINERS_MOST:
        raise TooMuch(f"these are more than {TRAINERS_MOST} points of trainers: ask for a larger step, or trainers=0")
    names = {key: (id_, name, user) for key, id_, name, user in named}
    covered = {point[0]: point[1] for point in points}
    trainers: dict[int, dict[str, dict[str, float]]] = defaultdict(dict)
    shown: dict[str, dict[str, str]] = {}
    for at_s, key, *values_s, step, samples in found:
        # a name that was removed in between, for example when the clock was set, is shown as hidden
        id_, name, user = names.get(key, (HIDDEN, HIDDEN, ""))
        if key not in names or not asked.sees(user):
            id_, name, user, step, samples = HIDDEN, HIDDEN, "", 0, 0.0
        shown[id_] = {"name": name, "user": user}
        mine = (*(value / covered[at_s] for value in values_s), step, samples)
        before = trainers[at_s].get(id_, dict.fromkeys(_NAMES, 0))
        trainers[at_s][id_] = {label: _short(before[label] + value) for label, value in zip(_NAMES, mine, strict=True)}
    return {
        "format": FORMAT,
        "since_s": asked.since_s,
        "until_s": asked.until_s,
        "step_s": step_s,
        "points": [_point(point, trainers.get(point[0], {}), *starts.get(point[0], (0, 0.0))) for point in points],
        "trainers": shown,
    }


def with_present(
    answer: dict[str, Any],
    last: PoolSample,
    now: PoolSample,
    users: Mapping[str, tuple[str, str]],
    asked: HistoryRequest,
) -> dict[str, Any]:
    """Return an answer that has the time since the `last` record too, in which nodes and trainers were as they are now.

    `users` has name and user of each trainer by id.
    """
    span_s = now.at_s - last.at_s
    if not 0 < span_s <= LOOKED_S:
        return answer
    at_s = int(now.at_s - span_s / 2) // answer["step_s"] * answer["step_s"]
    points = answer["points"]
    same = bool(points) and points[-1]["at_s"] == at_s
    before = points[-1] if same else _point((at_s, 1, *[0] * (len(NODE_STATES) + 4)), {}, 0, 0.0) | {"covered_s": 0}
    covered_s = before["covered_s"] + span_s

    def mean(old: float, new: float) -> float:
        return _short((old * before["covered_s"] + new * span_s) / covered_s)

    present: dict[str, dict[str, float]] = {}
    shown: dict[str, dict[str, str]] = {}
    for id_, point in now.trainers.items():
        name, user = users[id_]
        if not asked.sees(user):
            id_, name, user, point = HIDDEN, HIDDEN, "", replace(point, step=0, samples=0.0)
        shown[id_] = {"name": name, "user": user}
        own = present.get(id_, dict.fromkeys(_NAMES, 0))
        values = (point.working, point.leased, point.samples_per_s, point.step, point.samples)
        present[id_] = {label: own[label] + value for label, value in zip(_NAMES, values, strict=True)}
    none = dict.fromkeys(_NAMES, 0)
    trainers = {
        id_: {name: mean(before["trainers"].get(id_, none)[name], present.get(id_, none)[name]) for name in _MEANS}
        | {name: max(before["trainers"].get(id_, none)[name], present.get(id_, none)[name]) for name in _LAST}
        for id_ in before["trainers"].keys() | present.keys()
    }
    means = {state: mean(before["mean_nodes"][state], now.nodes[state]) for state in NODE_STATES}
    spent = {
        "pool_node_seconds": now.pool_node_seconds - last.pool_node_seconds,
        "held_node_seconds": now.used_node_seconds - last.used_node_seconds,
        "used_node_seconds": now.used_node_seconds - last.used_node_seconds,
        "training_node_seconds": now.training_node_seconds - last.training_node_seconds,
    }
    merged = before | {
        "covered_s": covered_s,
        "nodes": _rounded(means),
        "mean_nodes": means,
        "running": mean(before["running"], sum(point.leased > 0 for point in now.trainers.values())),
        "trainers": trainers,
    }
    merged |= {name: before[name] + value for name, value in spent.items()}
    return answer | {
        "points": [*(points[:-1] if same else points), merged],
        "trainers": answer["trainers"] | shown,
    }


def _step(asked: HistoryRequest) -> int:
    """Return the step in whole seconds, never finer than the records kept of that time."""
    length_s = max(0.0, min(asked.until_s, asked.now_s) - max(asked.since_s, asked.now_s - KEEP_S))
    least_s = COARSE_S if asked.since_s < asked.now_s - FINE_S else STEPS_S[0]
    if asked.step_s is None:
        fit = (step for step in STEPS_S if length_s / step <= POINTS_USUAL and step >= least_s)
        return next(fit, STEPS_S[-1])
    step_s = max(least_s, int(asked.step_s))
    if length_s / step_s > POINTS_MOST:
        raise TooMuch(f"these are more than {POINTS_MOST} points: ask for a larger step, or a shorter time")
    return step_s


def _point(
    point: tuple[Any, ...], trainers: dict[str, dict[str, float]], starts: int, delay_s: float
) -> dict[str, Any]:
    at_s, covered_s, *rest = point
    means = {state: sum_s / covered_s for state, sum_s in zip(NODE_STATES, rest, strict=False)}
    running_s, pool_s, used_s, training_s = rest[len(NODE_STATES) :]
    return {
        "at_s": at_s,
        "covered_s": covered_s,
        "nodes": _rounded(means),
        "mean_nodes": {state: _short(mean) for state, mean in means.items()},
        "running": _short(running_s / covered_s),
        "trainers": trainers,
        "pool_node_seconds": pool_s,
        "held_node_seconds": used_s,
        "used_node_seconds": used_s,
        "training_node_seconds": training_s,
        "regular_starts": starts,
        "regular_delay_seconds": delay_s,
    }


def _rounded(means: dict[str, float]) -> dict[str, int]:
    """Round numbers of nodes so that they add up to all nodes: those that lose most by it are rounded up."""
    whole = {state: int(mean) for state, mean in means.items()}
    missing = round(sum(means.values())) - sum(whole.values())
    for state in sorted(means, key=lambda state: whole[state] - means[state])[:missing]:
        whole[state] += 1
    return whole


def _short(value: float) -> float:
    """Round to three decimal places; a whole number becomes an int."""
    return int(value) if value == int(value) else round(value, 3)
