"""The Grafana dashboard: rows of panels, each with what it asks of Prometheus.

`tools.monitoring` writes it to docs/monitoring/dashboard.json, and it is edited here: what Grafana exports is ten times
as long, and nobody could read a change of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

# Every query is of the daemons that are chosen in the dashboard's head.
HERE = 'job=~"$job", cluster=~"$cluster", instance=~"$instance"'
_COLUMNS, _HEIGHT = 24, 8
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: its queries with their legends, `@` in them standing for the chosen daemons."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    text: str = ""
    stacked: bool = False


def _p(share: float, name: str, by: str = "", range_: str = "$__rate_interval") -> str:
    more = f", {by}" if by else ""
    return f"histogram_quantile({share}, sum by (le{more}) (rate(bftd_{name}_bucket{{@}}[{range_}])))"


def _percentiles(name: str, range_: str = "$__rate_interval") -> tuple[tuple[str, str], ...]:
    return tuple((_p(share, name, range_=range_), label) for share, label in ((0.5, "half"), (0.99, "99 in 100")))


def _of_pool(what: str) -> str:
    rates = (f"sum(rate(bftd_{name}_node_seconds_total{{@}}[15m]))" for name in (what, "pool"))
    return " / ".join(rates)


def _rate(name: str, by: str) -> str:
    return f"sum by ({by}) (rate(bftd_{name}_total{{@}}[$__rate_interval]))"


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    ("At a glance", (
        Panel("bftd", (('min(up{@})', ""),), kind="stat", width=3, text="1: it answers"),
        Panel("May grow", (("min(bftd_growth_allowed{@})", ""),), kind="stat", width=3, text="0: nothing may grow"),
        Panel("Slurm read", (("max(bftd_snapshot_age_seconds{@})", ""),), "s", "stat", 3, "ago"),
        Panel("Nodes that train", (('sum(bftd_trainer_nodes{@, set="working"})', ""),), kind="stat", width=3),
        Panel("Training, 24 h", (('max(bftd_training_ratio{@, window="24h"})', ""),), "percentunit", "stat", 3,
              "of the pool's node-seconds"),
        Panel("U, 24 h", (('max(bftd_u_ratio{@, window="24h"})', ""),), "percentunit", "stat", 3,
              "outcome over that of as many dedicated nodes"),
        Panel("Alarms", (("sum(bftd_alarms{@})", ""),), kind="stat", width=3),
        Panel("Overdue nodes", (("sum(bftd_overdue_nodes{@})", ""),), kind="stat", width=3),
    )),
    ("Pool", (
        Panel("Nodes", (("sum by (state) (bftd_nodes{@})", "{{state}}"),), width=12, stacked=True,
              text="Every node of the harvested partitions, by what it does"),
        Panel("Nodes of all trainers", (("sum by (set) (bftd_trainer_nodes{@})", "{{set}}"),
                                        ("sum(bftd_wanted_nodes{@})", "wanted beside them")), width=12),
        Panel("Idle and leased by class",
              (('sum by (node_class, state) (bftd_nodes{@, state=~"idle|leased"})', "{{node_class}} {{state}}"),)),
        Panel("Leases", (("sum by (state) (bftd_leases{@})", "{{state}}"),), stacked=True),
        Panel("Trainers", (("sum by (state) (bftd_trainers{@})", "{{state}}"),), stacked=True),
        Panel("Share of the pool", (
            (_of_pool("training"), "training"), (_of_pool("held"), "held"), (_of_pool("starting"), "starting"),
            (_of_pool("resizing"), "resizing")), "percentunit"),
        Panel("Training, held and U", (("max by (window) (bftd_training_ratio{@})", "training, {{window}}"),
                                       ("max by (window) (bftd_held_ratio{@})", "held, {{window}}"),
                                       ("max by (window) (bftd_u_ratio{@})", "U, {{window}}")), "percentunit"),
        Panel("Left alone", (("sum(bftd_quarantined_nodes{@})", "in quarantine"),
                             ("sum(bftd_backing_off_nodes{@})", "backing off"),
                             ("sum(bftd_orphan_jobs{@})", "orphan jobs"),
                             ("sum by (kind) (bftd_pauses{@})", "pauses of {{kind}}"))),
    )),
    ("Giving back", (
        Panel("Give-back", (*_percentiles("give_back_duration_seconds", "15m"),
                            ("max(bftd_give_back_bound_seconds{@})", "bound")), "s",
              text="From a node being asked back until its pilot is gone"),
        Panel("Nodes given back in a minute",
              (("60 * sum(rate(bftd_give_back_duration_seconds_count{@}[$__rate_interval]))", "given back"),
               ("60 * sum(rate(bftd_give_backs_late_total{@}[$__rate_interval]))", "late"),
               ("60 * sum(rate(bftd_give_backs_overdue_total{@}[$__rate_interval]))", "overdue"))),
        Panel("Oldest node asked back", (("max(bftd_give_back_oldest_seconds{@})", "since it was asked back"),), "s"),
        Panel("Regular jobs on nodes asked back", _percentiles("handover_duration_seconds", "1h"), "s",
              text="From a node being asked back until a regular job is seen on it"),
        Panel("Regular jobs on earmarked nodes", _percentiles("earmark_start_duration_seconds", "1h"), "s",
              text="From nodes being earmarked for a job until it is seen to have started"),
        Panel("Regular jobs' delay by pilots",
              (("max(bftd_regular_delay_counted_seconds{@})", "counted of the last hour"),
               ("max(bftd_regular_delay_budget_seconds{@})", "budget"),
               ("sum(increase(bftd_regular_delay_seconds_total{@}[1h]))", "all of the last hour")), "s",
              text="Where what counts is more than the budget, nothing new is lent"),
        Panel("Regular starts that pilots touched",
              (("sum(increase(bftd_regular_starts_total{@}[1h]))", "in an hour"),
               ("sum(increase(bftd_regular_starts_unknown_total{@}[1h]))", "delay not known"))),
        Panel("Earmarks in an hour", (("increase(bftd_earmarks_made_total{@}[1h])", "made"),
                                      ("increase(bftd_earmarks_started_total{@}[1h])", "job started"),
                                      ("increase(bftd_earmarks_wasted_total{@}[1h])", "wasted"),
                                      ("sum(bftd_earmarks{@})", "now"),
                                      ("max(bftd_earmarks_wary{@})", "only for users whose jobs start"))),
        Panel("Earmarked nodes",
              (("sum(rate(bftd_earmark_node_seconds_total{@}[15m]))", "in all"),
               ("sum(rate(bftd_earmark_wasted_node_seconds_total{@}[15m]))", "wasted"))),
        Panel("Stall of a resize", ((_p(0.5, "resize_stall_seconds", "kind", "1h"), "half, {{kind}}"),
                                    (_p(0.99, "resize_stall_seconds", "kind", "1h"), "99 in 100, {{kind}}")), "s"),
        Panel("What preemption costs in an hour",
              (("sum(increase(bftd_steps_lost_total{@}[1h]))", "steps lost"),
               ("sum by (kind) (increase(bftd_resizes_total{@}[1h]))", "resizes {{kind}}"),
               ("sum(increase(bftd_suspends_total{@}[1h]))", "suspensions"),
               ("sum(increase(bftd_crashes_total{@}[1h]))", "crashes"))),
    )),
    ("Decisions", (
        Panel("Decision", _percentiles("decision_duration_seconds"), "s", text="Steps of the core that made a plan"),
        Panel("Solving", ((_p(0.99, "solve_duration_seconds", "solver"), "99 in 100, {{solver}}"),), "s"),
        Panel("Taking in a snapshot", _percentiles("tick_duration_seconds"), "s"),
        Panel("Plans", (("sum by (solver, status) (rate(bftd_solve_duration_seconds_count{@}[$__rate_interval]))",
                         "{{solver}} {{status}}"),
                        ("sum(rate(bftd_solver_failures_total{@}[$__rate_interval]))", "failed"),
                        ("sum by (engine) (rate(bftd_solver_distrusted_total{@}[$__rate_interval]))",
                         "{{engine}} not believed")), "ops"),
        Panel("Events", ((_rate("events", "event"), "{{event}}"),), "ops"),
        Panel("Leases", ((_rate("lease_changes", "change"), "{{change}}"),), "ops"),
        Panel("Why nothing grows", (("max by (reason) (bftd_growth_blocked{@}) > 0", "{{reason}}"),)),
        Panel("Trainers that ended in an hour",
              (("sum by (result) (increase(bftd_finished_trainers_total{@}[1h]))", "{{result}}"),)),
        Panel("Silent drivers and alarms", (("sum(bftd_silent_drivers{@})", "silent drivers"),
                                            ("sum by (kind) (bftd_alarms{@})", "alarm: {{kind}}"))),
    )),
    ("Slurm", (
        Panel("Commands", ((_p(0.9, "slurm_command_duration_seconds", "command"), "9 in 10, {{command}}"),), "s"),
        Panel("Errors", ((_rate("slurm_command_errors", "command, outcome"), "{{command}} {{outcome}}"),), "ops"),
        Panel("Snapshots", ((_rate("snapshots", "result"), "{{result}}"),), "ops"),
        Panel("Age of the snapshot", (("max(bftd_snapshot_age_seconds{@})", "age"),), "s"),
        Panel("Reading a snapshot", _percentiles("snapshot_read_duration_seconds"), "s"),
        Panel("Jobs cancelled", ((_rate("cancelled_jobs", "whose"), "of a {{whose}}"),), "ops"),
    )),
    ("Ledger and daemon", (
        Panel("Ledger", (("max(bftd_ledger_size_bytes{@})", "size"), ("max(bftd_ledger_max_bytes{@})", "most")),
              "bytes"),
        Panel("Written", (("sum(rate(bftd_ledger_written_bytes_total{@}[$__rate_interval]))", "to the ledger"),),
              "Bps"),
        Panel("Can be written, is full", (("min(bftd_ledger_writable{@})", "can be written"),
                                          ("max(bftd_ledger_full{@})", "is full"))),
        Panel("Requests", ((_rate("api_requests", "route, code"), "{{route}} {{code}}"),), "ops"),
        Panel("Memory", (("max(process_resident_memory_bytes{@})", "resident"),), "bytes"),
        Panel("Processor", (("sum(rate(process_cpu_seconds_total{@}[$__rate_interval]))", "CPUs"),)),
    )),
)  # fmt: skip


def queries() -> Iterator[str]:
    """What all panels ask, with no daemon chosen."""
    for _, panels in ROWS:
        for panel in panels:
            yield from (expr.replace("{@", '{job="bftd"') for expr, _ in panel.queries)


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    return {
        "uid": "bftd",
        "title": "bftd",
        "description": "Idle nodes of a Slurm cluster, lent to elastic training and given back",
        "tags": ["slurm", "bftd"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_datasource(), *_choices()]},
        "panels": list(_panels(ROWS)),
    }


def _datasource() -> dict[str, Any]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "refresh": 1}


def _choices() -> Iterator[dict[str, Any]]:
    """The labels by which daemons are chosen, each among those of the choices before it."""
    yield _choice("job", "Job", "bftd_build_info")
    # .* also matches where the label is missing, as at a site with one cluster
    yield _choice("cluster", "Cluster", 'bftd_build_info{job=~"$job"}') | {"allValue": ".*"}
    # of `up`, so that a daemon that does not answer can be chosen too
    yield _choice("instance", "Daemon", 'up{job=~"$job", cluster=~"$cluster"}')


def _choice(label: str, title: str, series: str) -> dict[str, Any]:
    return {
        "name": label,
        "label": title,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": f"label_values({series}, {label})", "refId": label},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panels(rows: Sequence[tuple[str, Sequence[Panel]]]) -> Iterator[dict[str, Any]]:
    id_ = y = 0
    for title, panels in rows:
        id_ += 1
        yield {"id": id_, "type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": _place(0, y)}
        x, y = 0, y + 1
        height = 4 if all(panel.kind == "stat" for panel in panels) else _HEIGHT
        for panel in panels:
            if x + panel.width > _COLUMNS:
                x, y = 0, y + height
            id_ += 1
            yield _panel(id_, panel) | {"gridPos": _place(x, y, panel.width, height)}
            x += panel.width
        y += height


def _place(x: int, y: int, width: int = _COLUMNS, height: int = 1) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(id_: int, panel: Panel) -> dict[str, Any]:
    custom: dict[str, Any] = {"fillOpacity": 10, "showPoints": "never"}
    if panel.stacked:
        custom |= {"fillOpacity": 60, "lineWidth": 0, "stacking": {"mode": "normal", "group": "A"}}
    options: dict[str, Any] = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}}
    if panel.kind == "stat":
        custom, options = {}, {"colorMode": "none", "reduceOptions": {"calcs": ["lastNotNull"]}}
    return {
        "id": id_,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": _SOURCE,
                "expr": expr.replace("{@", f"{{{HERE}"),
                "legendFormat": legend or "__auto",
            }
            for place, (expr, legend) in enumerate(panel.queries)
        ],
    }
