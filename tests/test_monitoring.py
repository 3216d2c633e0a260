"""docs/monitoring/ against what the daemon really shows."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

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


def test_every_panel_is_of_the_daemons_that_are_chosen_by_job_cluster_and_instance() -> None:
    head = {one["name"]: one for one in dashboard()["templating"]["list"]}
    labels = ["job", "cluster", "instance"]
    assert list(head) == ["datasource", *labels]
    for place, label in enumerate(labels):
        assert head[label]["query"]["query"].endswith(f", {label})")
        assert re.findall(r"\$(\w+)", head[label]["query"]["query"]) == labels[:place], "of the choices before it"
        assert head[label]["includeAll"]
        # all jobs are those of bftd: `up` and the metrics of processes are other programs' too
        assert head[label].get("allValue") == (".*" if label == "cluster" else None)
    asked = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    selectors = [one for expr in asked for one in re.findall(r"(?:bftd|process)_\w+(\{.*?\})|\bup(\{.*?\})", expr)]
    assert len(selectors) >= len(asked)
    assert all(f'{label}=~"${label}"' in "".join(one) for one in selectors for label in labels)


def test_the_documented_command_makes_every_runbook_address_absolute(tmp_path: Path) -> None:
    page = (monitoring.FOLDER.parent / "howto" / "monitoring.md").read_text(encoding="utf-8")
    command = re.search(r"sed ('s\|.*?') \S+/rules\.yml", page)
    assert command is not None
    done = subprocess.run(
        ["sed", *shlex.split(command[1]), str(monitoring.FOLDER / "rules.yml")],
        capture_output=True,
        text=True,
        check=True,
    )
    addresses = re.findall(r"runbook_url: (\S+)", done.stdout)
    assert [address.rpartition("#")[2] for address in addresses] == [alert.name.lower() for alert in ALERTS]
    assert {address.rpartition("#")[0] for address in addresses} == {
        "https://hpc.example.org/bftd/reference/monitoring/"
    }
