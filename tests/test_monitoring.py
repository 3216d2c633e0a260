"""docs/monitoring/ against what the daemon really shows."""

from __future__ import annotations

import json
import re

from tools import monitoring
from tools.monitoring_alerts import ALERTS
from tools.monitoring_dashboard import dashboard, queries

SHOWN = {monitoring.name_of(family) for family in monitoring.families()}
# Prometheus's own.
OF_THE_TARGET = {"up"}


def test_every_query_of_dashboard_and_rules_is_of_metrics_that_the_daemon_shows() -> None:
    asked = set().union(*map(monitoring.names_in, [*queries(), *(alert.expr for alert in ALERTS)]))
    assert asked <= SHOWN


def test_every_metric_is_on_the_dashboard_but_what_only_tells_how_it_is_set_up() -> None:
    asked = set().union(*map(monitoring.names_in, queries()))
    older = {"bftd_recovered_ratio", "bftd_stray_jobs", "bftd_used_node_seconds_total"}
    older |= {monitoring.name_of(one) for one in monitoring.families() if one.documentation.startswith("Old name of ")}
    assert {name for name in SHOWN - asked if name.startswith("bftd_")} - older == {"bftd_build_info", "bftd_mode"}


def test_names_are_as_prometheus_wants_them() -> None:
    units = "seconds|bytes|ratio|total|info"
    durations = [name for name in SHOWN if name.startswith("bftd_") and re.search("duration|age|stall|bytes", name)]
    assert durations
    assert not [name for name in durations if not re.search(rf"_({units})$", name)]
    assert all(family.documentation.endswith(".") for family in monitoring.families() if "bftd" in family.name)


def test_panels_have_places_that_do_not_overlap_and_the_source_that_is_chosen() -> None:
    taken = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
        if panel["type"] != "row":
            assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
    assert "$instance" in json.dumps(dashboard())
