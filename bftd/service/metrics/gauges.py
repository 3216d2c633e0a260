"""Metrics computed from a service's state on request: gauges, and the counters that the ledger keeps. Pure.

Every label has few values, all of them from the code or the site: node classes are the site's hardware, and the
smallest ones beyond CLASSES_MOST count as one. Nothing that a user can choose is a label.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from bftd.core.inputs import delay_budget, orphan_jobs
from bftd.core.model import growth_stops, timing
from bftd.core.model.domain import Lease, State, TrainerState
from bftd.core.model.draft import growth_allowed, is_silent
from bftd.core.model.pause import PauseKind
from bftd.core.sampling import NODE_STATES, kinds
from bftd.service.instrumentation import Figures

# The most classes of nodes with a label of their own.
CLASSES_MOST = 16
OTHERS = "(others)"
# bftd's back-ends: drivers may send any name.
BACKENDS = ("horovod", "torchrun")
LEASE_STATES = ("granted", "placed", "ready", "working", "revoked")
# The reasons that keep everything from growing.
BLOCKS = ("ledger", "partition", "other_daemon", "paused", "hours", "promise", "unseen", "stale", "unheard")
MODES = ("live", "shadow")
ALARMS = ("operator", "other_daemon", "overdue", "no_plan", "solver", "plugin", "delay", "other")
_Key = TypeVar("_Key", bound=tuple[str, ...])
_WINDOWS = {3600: "1h", 86400: "24h", 604800: "7d"}


def families(figures: Figures, version: str, snapshot_age_s: float) -> Iterator[Metric]:
    """Yield all metrics of a state."""
    yield from _daemon(figures, version, snapshot_age_s)
    yield from _pool(figures.state)
    yield from _leases(figures.state, figures.now_s)
    yield from _trainers(figures.state, figures.now_s)
    yield from _usage(figures.state)
    yield from _delays(figures.state, figures.now_s)
    yield from _windows(figures)
    yield from _steering(figures)
    yield from _ledger(figures)


def _daemon(figures: Figures, version: str, snapshot_age_s: float) -> Iterator[Metric]:
    yield _gauge("build_info", "1; the version of the daemon is a label.", {(version,): 1.0}, "version")
    modes = {(mode,): float(mode == figures.mode) for mode in MODES}
    yield _gauge("mode", "1 for the mode that the daemon runs in, else 0.", modes, "mode")
    yield _one("snapshot_age_seconds", "Seconds since Slurm was last read well, or since the start.", snapshot_age_s)
    blocked = blocks(figures)
    allowed = float(not any(blocked.values()))
    yield _one("growth_allowed", "1 where trainers may grow, 0 where something keeps all of them from it.", allowed)
    values = {(name,): float(is_so) for name, is_so in blocked.items()}
    yield _gauge("growth_blocked", "1 for each reason that keeps all trainers from growing, else 0.", values, "reason")


def blocks(figures: Figures) -> dict[str, bool]:
    """Return, for each reason, whether it keeps everything from growing."""
    state, now_s = figures.state, figures.now_s
    settings, pool = state.settings, state.pool
    paused = growth_stops.of_all(state.pauses) is not None
    foreign = orphan_jobs.FOREIGN in state.alarms
    held = pool.hold is not None
    found = dict.fromkeys(BLOCKS, False)
    found["ledger"] = bool(figures.failure)
    found["partition"] = bool(pool.refused)
    found["other_daemon"] = held and foreign and not pool.refused and not figures.failure
    found["paused"] = paused
    found["hours"] = bool(growth_stops.hours_text(settings, now_s))
    found["promise"] = bool(delay_budget.spent(state.delays, settings, now_s))
    found["unseen"] = not pool.seen
    found["stale"] = pool.seen and now_s - pool.time_s > settings.pool.stale_after_s
    if not any(found.values()) and not growth_allowed(pool, now_s, settings):
        found["unheard"] = True  # a hold of no other kind is that of nodes that became unfit together
    return found


def _pool(state: State) -> Iterator[Metric]:
    names = class_labels(state)
    seen = state.pool.nodes
    counts = Counter((kind, names.get(seen[name].node_class, OTHERS)) for name, kind in kinds(state).items())
    values = {(kind, name): float(counts[kind, name]) for name in _distinct(names) for kind in NODE_STATES}
    yield _gauge("nodes", "Nodes of the harvested partitions by what they do.", values, "state", "node_class")
    yield _one("quarantined_nodes", "Nodes in quarantine because workers failed on them.", len(state.quarantined))
    backing = sum(item.until_s > state.time_s for item in state.backoff.values())
    yield _one("backing_off_nodes", "Nodes left alone for a moment because Slurm refused pilots there.", backing)
    yield from _renamed(_one, "earmarks", "rooms", "Jobs for which nodes are earmarked.", len(state.pool.earmarks))
    orphan_jobs = sum(orphan.named for orphan in state.orphan_jobs.values())
    yield _one("orphan_jobs", "Jobs of the harvested partitions that no lease stands behind.", orphan_jobs)
    yield _one("stray_jobs", "Name of bftd_orphan_jobs until 1.1.", orphan_jobs)


def class_labels(state: State) -> dict[str, str]:
    """Return the label of each class: its name, or OTHERS for the smallest ones beyond CLASSES_MOST."""
    kinds = sorted(state.pool.classes.values(), key=lambda kind: (-kind.size, kind.name))
    return {kind.name: kind.name if rank < CLASSES_MOST else OTHERS for rank, kind in enumerate(kinds)}


def _distinct(names: Mapping[str, str]) -> Sequence[str]:
    return tuple(dict.fromkeys(names.values())) or (OTHERS,)


def _leases(state: State, now_s: float) -> Iterator[Metric]:
    backends = {trainer.id: trainer.request.backend for trainer in state.trainers.values()}
    counts: Counter[tuple[str, str]] = Counter()
    for lease in state.leases.values():
        name = backends.get(lease.trainer, "")
        counts[name if name in BACKENDS else "other", _lease_state(lease)] += 1
    values = {(name, kind): float(counts[name, kind]) for name in (*BACKENDS, "other") for kind in LEASE_STATES}
    yield _gauge("leases", "Leases by back-end of their trainer and by how far they are.", values, "backend", "state")
    asked_s = [now_s - lease.asked_back_s for lease in state.leases.values() if lease.asked_back_s is not None]
    oldest_s = max(0.0, max(asked_s, default=0.0))
    yield _one("give_back_oldest_seconds", "Seconds since the oldest node was asked back that is still held.", oldest_s)
    bound_s = state.settings.pool.give_back_bound_s
    yield _one("give_back_bound_seconds", "Seconds in which a node that is asked back must be free.", bound_s)
    overdue = sum(lease.alarmed for lease in state.leases.values())
    yield _one("overdue_nodes", "Nodes that are still held when give_back_bound_s is over.", overdue)


def _lease_state(lease: Lease) -> str:
    return lease.phase if lease.live and lease.phase in LEASE_STATES else "revoked"


def _trainers(state: State, now_s: float) -> Iterator[Metric]:
    kinds = Counter(trainer.state for trainer in state.trainers.values())
    values = {(kind,): float(kinds[kind]) for kind in get_args(TrainerState)}
    yield _gauge("trainers", "Trainers that are known, by state.", values, "state")
    live = Counter(lease.trainer for lease in state.leases.values() if lease.live)
    observed = sum(lease.observed for lease in state.leases.values())
    working = sum(lease.phase == "working" for lease in state.leases.values())
    planned = sum(map(len, state.planned.assignment.values()))
    sets = {"planned": planned, "requested": live.total(), "observed": observed, "working": working}
    by_set = {(name,): float(count) for name, count in sets.items()}
    yield _gauge("trainer_nodes", "Nodes of all trainers: planned, requested, observed, working.", by_set, "set")
    active = [trainer for trainer in state.trainers.values() if trainer.active]
    willing = [trainer for trainer in active if not is_silent(trainer, now_s, state.settings)]
    wanted = sum(max(0, trainer.sizes.high - live[trainer.id]) for trainer in willing)
    yield _one("wanted_nodes", "Nodes that trainers could use beside those that they have.", wanted)
    silent = sum(now_s - trainer.heard_s > timing.DRIVER_SILENT_S for trainer in active)
    yield _one("silent_drivers", "Trainers of whose driver nothing is heard.", silent)


def _usage(state: State) -> Iterator[Metric]:
    usage, earmarks = state.usage, state.earmark_usage
    since = "since the ledger began"
    yield _total("pool_node_seconds", f"Node-seconds in the pool or with a pilot {since}.", usage.pool_node_seconds)
    yield _total(
        "training_node_seconds", f"Node-seconds on which workers trained {since}.", usage.training_node_seconds
    )
    yield _total("held_node_seconds", f"Node-seconds with a pilot {since}.", usage.used_node_seconds)
    yield _total(
        "starting_node_seconds",
        f"Node-seconds with a pilot before its first step {since}.",
        usage.starting_node_seconds,
    )
    yield _total(
        "resizing_node_seconds", f"Node-seconds that stood still at resizes {since}.", usage.resizing_node_seconds
    )
    yield _total("used_node_seconds", "The older name of bftd_held_node_seconds_total.", usage.used_node_seconds)
    wary = "1 while nodes are earmarked only for users whose jobs start there, as too many earmarks were wasted."
    yield from _renamed(_one, "earmarks_wary", "rooms_wary", wary, bool(state.pool.wary))
    for name, old, doc, value in (
        ("earmarks_made", "rooms_made", "Earmarks made for waiting jobs", earmarks.made),
        ("earmarks_started", "rooms_started", "Earmarks on which their job started", earmarks.started),
        ("earmarks_wasted", "rooms_in_vain", "Earmarks that led to no start", earmarks.wasted),
        ("earmark_node_seconds", "room_node_seconds", "Earmarked node-seconds", earmarks.kept_node_seconds),
        (
            "earmark_wasted_node_seconds",
            "room_vain_node_seconds",
            "Earmarked node-seconds that led to no start",
            earmarks.wasted_node_seconds,
        ),
    ):
        yield from _renamed(_total, name, old, f"{doc} {since}.", value)


def _delays(state: State, now_s: float) -> Iterator[Metric]:
    delays, since = state.delays, "since the ledger began"
    yield _total("regular_starts", f"Starts of regular jobs that pilots touched {since}.", delays.starts)
    yield _total("regular_starts_unknown", f"Such starts whose delay nobody knows {since}.", delays.unknown)
    yield _total("regular_delay_seconds", f"Seconds that pilots delayed regular jobs by {since}.", delays.total_s)
    counted_s = delays.counted_s(now_s)
    yield _one("regular_delay_counted_seconds", "Delay of the last hour that counts against the budget.", counted_s)
    budget_s = state.settings.promise.delay_s_per_hour
    yield _one("regular_delay_budget_seconds", "What delay_s_per_hour allows in an hour; 0 is no bound.", budget_s)


def _windows(figures: Figures) -> Iterator[Metric]:
    u = GaugeMetricFamily("bftd_u_ratio", "Outcome over that of as many dedicated nodes (U).", labels=("window",))
    training = GaugeMetricFamily("bftd_training_ratio", "Share of the pool that trained.", labels=("window",))
    held = GaugeMetricFamily("bftd_held_ratio", "Share of the pool with pilots on it.", labels=("window",))
    older = GaugeMetricFamily("bftd_recovered_ratio", "The older name of bftd_held_ratio.", labels=("window",))
    for window in figures.windows:
        name = _WINDOWS.get(int(window.window_s))
        if name is None:
            continue
        if window.u is not None:
            u.add_metric((name,), window.u)
        if window.training_share is not None and window.held_share is not None:
            training.add_metric((name,), window.training_share)
            held.add_metric((name,), window.held_share)
            older.add_metric((name,), window.held_share)
    yield from (u, training, held, older)


def _steering(figures: Figures) -> Iterator[Metric]:
    state = figures.state
    kinds = Counter(pause.kind for pause in state.pauses.values())
    values = {(kind,): float(kinds[kind]) for kind in get_args(PauseKind)}
    yield _gauge("pauses", "Pauses of administrators in force, by what is paused.", values, "kind")
    alarms = Counter(_alarm(name) for name in state.alarms)
    alarms["overdue"] += sum(lease.alarmed for lease in state.leases.values())
    if failed := state.failed_solvers.get(state.settings.decide.solver):
        alarms[failed.alarm] += 1
    alarms["plugin"] += bool(figures.plugin_fault)
    alarms["delay"] += bool(delay_budget.alarms(state, figures.now_s))
    standing = {(kind,): float(alarms[kind]) for kind in ALARMS}
    yield _gauge("alarms", "Alarms that stand, by kind.", standing, "kind")


def _alarm(name: str) -> str:
    if name == orphan_jobs.FOREIGN:
        return "other_daemon"
    return name if name in ALARMS else "other"


def _ledger(figures: Figures) -> Iterator[Metric]:
    size: Mapping[str, Any] = figures.ledger
    yield _one("ledger_size_bytes", "Bytes of the ledger, its log included.", size["bytes"])
    yield _one("ledger_max_bytes", "Bytes that the ledger may have.", size["max_bytes"])
    yield _one("ledger_full", "1 where events are dropped early because the ledger is full, else 0.", size["full"])
    yield _one("ledger_writable", "1 where the ledger can be written, 0 where nothing grows meanwhile.",
               not figures.failure)  # fmt: skip
    yield _total("ledger_written_bytes", "Bytes written to the ledger by this process.", figures.written_bytes)


def _gauge(name: str, text: str, values: Mapping[_Key, float], *labels: str) -> Metric:
    family = GaugeMetricFamily(f"bftd_{name}", text, labels=labels)
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def _one(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"bftd_{name}", text, value=float(value))


def _total(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"bftd_{name}", text, value=float(value))


def _renamed(
    kind: Callable[[str, str, float], Metric], name: str, old: str, text: str, value: float
) -> Iterator[Metric]:
    """Yield a metric under its name, and until 1.1 under its old one."""
    metric = kind(name, text, value)
    yield metric
    yield kind(old, f"Old name of {names([metric])[0]}, until 1.1.", value)


def names(found: Iterable[Metric]) -> tuple[str, ...]:
    """Return the names of families as they are queried, for docs and tests."""
    return tuple(f"{item.name}_total" if item.type == "counter" else item.name for item in found)
