"""The files of docs/monitoring/ and sections of docs/reference/monitoring.md: alerts, dashboard and metrics."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from prometheus_client.metrics_core import Metric

from bftd.config.keys import Config
from bftd.ledger.file import Ledger
from bftd.service.metrics.counters import Counters
from bftd.service.metrics.exposition import Exposition
from bftd.service.service import Service
from tools.monitoring_alerts import ALERTS, ANY, Alert
from tools.monitoring_dashboard import dashboard

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "monitoring"
# A name as a query has it: those that a histogram ends in are of its family.
NAME = re.compile(r"\b(?:bftd|process)_[a-z0-9_]+")
_ENDS = re.compile(r"_(?:bucket|count|sum)$")
_INTERVALS = re.compile(r"\[\d+[smhd]\]")
FAULTY = "faulty"
_MADE = "# Made by `make docs`: change tools/monitoring_alerts.py, not this file.\n"


def rules(alerts: Iterable[Alert] = ALERTS, at_once: bool = False) -> str:
    """The rules as Prometheus reads them; `at_once` without waiting, over short times, for a test."""
    lines = ["groups:", "  - name: bftd", "    rules:"]
    for alert in alerts:
        expr = _INTERVALS.sub("[5s]", alert.expr) if at_once else alert.expr
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {_quoted(expr)}",
            f"        for: {'0s' if at_once else alert.for_}",
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            f"          summary: {_quoted(alert.summary)}",
            f"          description: {_quoted(alert.todo)}",
            f"          runbook_url: docs/reference/monitoring.md#{alert.name.lower()}",
        ]
    return _MADE + "\n".join(lines) + "\n"


def rules_test() -> str:
    """What `promtool test rules` tries: each rule on a daemon with its fault and on one without.

    All daemons of rules that fire after as long a time are tried together, which takes seconds less, but for those of
    rules that are about there being none.
    """
    lines = ["rule_files:", "  - rules.yml", "evaluation_interval: 5m", "tests:"]
    groups: dict[tuple[int, bool], list[Alert]] = {}
    for alert in ALERTS:
        groups.setdefault((alert.at_min, bool(alert.fault)), []).append(alert)
    for (at_min, _), alerts in groups.items():
        lines += ["  - interval: 1m", f"    name: {', '.join(alert.name for alert in alerts)}"]
        tried = [(alert, case, series) for alert in alerts for case, series in _cases(alert)]
        lines.append("    input_series:" if any(series for _, _, series in tried) else "    input_series: []")
        for alert, case, series in tried:
            for name, values in series:
                named = name.replace(ANY, f"{alert.name} {case}")
                lines += [f"      - series: {_quoted(named)}", f"        values: {_quoted(values)}"]
        lines.append("    promql_expr_test:")
        for alert, case, series in tried:
            of = f', instance="{alert.name} {case}"' if series else ""
            asked = f'count(ALERTS{{alertname="{alert.name}", alertstate="firing"{of}}})'
            lines += [f"      - expr: {_quoted(asked)}", f"        eval_time: {at_min}m"]
            lines.append("        exp_samples: [{value: 1}]" if case == FAULTY else "        exp_samples: []")
    return _MADE + "\n".join(lines) + "\n"


def _cases(alert: Alert) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    yield FAULTY, alert.fault
    if alert.fault:
        yield "calm", alert.calm


def _quoted(text: str) -> str:
    """A text as YAML has it between single quotes."""
    return "'" + text.replace("'", "''") + "'"


def families() -> tuple[Metric, ...]:
    """Every family that a daemon shows, in the order in which it does."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "ledger")
        service = Service(Config(), ledger, lambda job_ids: None)
        found = tuple(Exposition(Counters(), service.figures(), "").collect())
        ledger.close()
    return found


def names_in(expr: str) -> set[str]:
    """The metrics that a query is of, those of a histogram by its family's name."""
    return {_ENDS.sub("", name) for name in NAME.findall(expr)}


def name_of(family: Metric) -> str:
    """The name of a family as it is queried."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def metrics_table() -> str:
    """All metrics of ours as a table."""
    rows = ["| metric | type | labels | what |", "|---|---|---|---|"]
    for family in families():
        if family.name.startswith("bftd_"):
            rows.append(f"| `{name_of(family)}` | {family.type} | {_labels(family)} | {family.documentation} |")
    return "\n".join(rows) + "\n"


def _labels(family: Metric) -> str:
    from_samples = [label for sample in family.samples for label in sample.labels if label != "le"]
    known = dict.fromkeys(from_samples) or dict.fromkeys(LABELS.get(family.name, ()))
    return " ".join(f"`{name}`" for name in known)


# Of families that have no sample before anything has happened.
LABELS = {
    "bftd_api_requests": ("method", "route", "code"),
    "bftd_solve_duration_seconds": ("solver", "status"),
    "bftd_held_ratio": ("window",),
    "bftd_recovered_ratio": ("window",),
    "bftd_training_ratio": ("window",),
    "bftd_u_ratio": ("window",),
}


def alerts_text() -> str:
    """A section for each alert: when it fires, and what to do then."""
    return "\n".join(_sections())


def _sections() -> Iterator[str]:
    for alert in ALERTS:
        held = "at once" if alert.for_ == "0m" else f"after {alert.for_}"
        summary = re.sub(r"\{\{.*?\}\}", "...", alert.summary)
        yield (
            f"### {alert.name}\n\n{alert.severity}, {held}: *{summary}*\n\n```\n{alert.expr}\n```\n\n{alert.todo} "
            f"[More]({alert.page})\n"
        )


SECTIONS: Mapping[str, Callable[[], str]] = {
    "metrics": lambda: f"\n{metrics_table()}\n",
    "alerts": lambda: f"\n{alerts_text()}\n",
}


def files() -> dict[Path, str]:
    """The text of every file of docs/monitoring/."""
    shown = json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"
    return {
        FOLDER / "rules.yml": rules(),
        FOLDER / "rules_test.yml": rules_test(),
        FOLDER / "dashboard.json": shown,
    }
