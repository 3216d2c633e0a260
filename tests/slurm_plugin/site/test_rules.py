"""Every rule, on recorded answers of a cluster with the recommended settings, each spoiled by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.site_lines import applied
from bftd import config_file
from slurm_plugin.errors import SnapshotError
from slurm_plugin.read.settings import parse_config
from slurm_plugin.site import RULES, advise, check, render
from slurm_plugin.site.lines import FILES, NoNodes
from slurm_plugin.site.model import Site
from slurm_plugin.site.plugins import lua_settings
from tests.slurm_plugin.site.sites import (
    ASSETS,
    BRINGS_LIMITS,
    BRINGS_PILOT_MODE,
    DBD,
    NOT_OURS,
    SPOILED,
    WANTED,
    Spoil,
    both,
    option,
    recorded,
    setting,
    without,
)
from tests.support.messages import wording

DOCS = Path(__file__).parents[3] / "docs"


def wrong(site: Site) -> dict[str, str]:
    """Each rule that finds fault, with its level."""
    return {finding.rule.name: finding.level for finding in check(site, RULES) if finding.level != "ok"}


def test_the_recommended_cluster_is_right_in_every_line() -> None:
    findings = check(recorded("recommended"), RULES)
    without_slurmdbd = {"harvested partition: TRESBillingWeights", "pilots' QOS"}
    assert [finding.rule.name for finding in findings] == [
        rule.name for rule in RULES if rule.name not in without_slurmdbd
    ]
    assert {finding.level for finding in findings} == {"ok"}


def test_a_stock_cluster_must_get_preemption_and_two_partitions() -> None:
    found = wrong(recorded("stock"))
    assert {name for name, level in found.items() if level == "must"} == {
        "PreemptType",
        "PreemptMode",
        "harvested partition",
        "driver partition",
    }
    assert {"JobSubmitPlugins", "SchedulerParameters: bf_continue"} < found.keys()
    assert "SchedulerParameters: bf_interval" not in found


@pytest.mark.parametrize(("name", "level", "spoil"), SPOILED)
def test_a_wrong_setting_is_found_by_its_rule_alone(name: str, level: str, spoil: Spoil) -> None:
    found = wrong(spoil(recorded("recommended")))
    assert found.pop(name) == level
    brought = {"pilot_mode"} if name in BRINGS_PILOT_MODE else set()
    assert found.keys() <= (brought | {"AccountingStorageEnforce"} if name in BRINGS_LIMITS else brought)


def test_every_rule_has_a_setting_that_it_finds_wrong() -> None:
    assert {name for name, _, _ in SPOILED} == {rule.name for rule in RULES}


@settings(deadline=None)
@given(st.lists(st.sampled_from(SPOILED), max_size=6, unique=True), st.sampled_from(["stock", "recommended"]))
def test_the_lines_leave_nothing_wrong_that_a_line_can_change(faults: list[tuple[str, str, Spoil]], start: str) -> None:
    site = recorded(start)
    for _, _, spoil in faults:
        try:
            site = spoil(site)
        except KeyError:  # this cluster has no such partition
            continue
    try:
        advised = advise(site, RULES, nodes="n[1-2]", driver_nodes="svc1")
    except NoNodes:
        pytest.fail("nodes were given")
    assert wrong(advised.after).keys() <= NOT_OURS
    assert [render(advise(advised.after, RULES), file) for file in FILES] == [""] * len(FILES)


@settings(deadline=None)
@given(st.lists(st.sampled_from(SPOILED), max_size=6, unique=True))
def test_no_partition_gets_a_second_line_which_would_stop_slurmctld(faults: list[tuple[str, str, Spoil]]) -> None:
    site = recorded("recommended")
    for _, _, spoil in faults:
        try:
            site = spoil(site)
        except KeyError:
            continue
    printed = render(advise(site, RULES, nodes="n[1-2]", driver_nodes="svc1"), "slurm.conf")
    new = [line.split()[0].removeprefix("PartitionName=") for line in printed.splitlines() if line.startswith("Part")]
    assert len(new) == len(set(new))
    assert not set(new) & site.partitions.keys()


def test_what_cannot_be_changed_has_a_price_with_a_figure() -> None:
    loses = {rule.name: rule.loses for rule in RULES}
    assert "68 %" in loses["JobSubmitPlugins"]
    assert "bf_interval 30" in loses["earmark"]
    assert "58-69 s" in loses["KillWait"]
    assert "GraceTime 10" in loses["harvested partition: GraceTime"]


@pytest.mark.parametrize("key", ["PreemptExemptTime", "SchedulerParameters", "SlurmctldParameters", "MaxJobCount"])
def test_a_setting_that_slurm_does_not_show_is_never_right(key: str) -> None:
    site = recorded("recommended")
    hidden = replace(site, config={name: value for name, value in site.config.items() if name != key})
    named = {rule.name for rule in RULES if key in rule.name} - {"SchedulerParameters: defer"}
    assert named <= wrong(hidden).keys()


def test_a_site_s_own_options_stay_in_the_lists() -> None:
    site = setting("SchedulerParameters", "bf_max_job_test=2000,defer,bf_interval=60")(recorded("recommended"))
    site = setting("JobSubmitPlugins", "all_partitions")(site)
    printed = render(advise(site, RULES), "slurm.conf").splitlines()
    (line,) = (line for line in printed if line.startswith("SchedulerParameters="))
    assert line == ("SchedulerParameters=bf_max_job_test=2000,defer,bf_interval=60,preempt_youngest_first,bf_continue")
    assert "JobSubmitPlugins=all_partitions,lua" in printed


def test_private_data_keeps_what_bftd_need_not_see() -> None:
    site = setting("PrivateData", "accounts,jobs,usage")(recorded("recommended"))
    assert "PrivateData=accounts,usage" in render(advise(site, RULES), "slurm.conf").splitlines()


def test_a_site_that_keeps_its_submit_plugins_gets_pilots_by_sbatch() -> None:
    advised = advise(recorded("stock"), RULES, keep=["JobSubmitPlugins", "ReturnToService"])
    assert 'pilot_mode = "sbatch"' in render(advised, "bftd.toml")
    assert render(advised, "job_submit.lua") == ""
    assert wrong(advised.after) == {"JobSubmitPlugins": "advice", "ReturnToService": "advice"}


def test_names_of_partitions_reach_all_files() -> None:
    wanted = replace(WANTED, partition="harvest", driver_partition="services")
    advised = advise(replace(recorded("stock"), wanted=wanted), RULES, configured=WANTED)
    assert "PartitionName=harvest Nodes=n[1-2] " in render(advised, "slurm.conf")
    assert "PartitionName=services Nodes=svc1 " in render(advised, "slurm.conf")
    assert 'install({partition = "harvest", driver_partition = "services"})' in render(advised, "job_submit.lua")
    daemon = config_file.parse(render(advised, "bftd.toml")).slurm
    assert (daemon.partition, daemon.driver_partition, daemon.pilot_mode) == ("harvest", "services", "salloc")


@pytest.mark.parametrize(("told", "level"), [("elastic,night", "ok"), ("night,elastic,old", "ok"), ("night", "advice")])
def test_the_plugins_are_told_of_every_harvested_partition(told: str, level: str) -> None:
    site = recorded("recommended")
    lua = replace(site.lua, text=site.lua.text.replace("{}", f'{{ partition = "{told}" }}'))
    several = replace(site, lua=lua, wanted=replace(site.wanted, partitions=("elastic", "night")))
    (found,) = (finding for finding in check(several, RULES) if finding.rule.name == "job_submit.lua")
    assert found.level == level


def test_another_harvested_partition_is_no_regular_one() -> None:
    site = recorded("recommended")
    partitions = {**site.partitions, "night": site.partitions["elastic"]}
    several = replace(site, partitions=partitions, wanted=replace(site.wanted, partitions=("elastic", "night")))
    assert set(several.regular) == set(site.regular)
    assert not [finding for finding in check(several, RULES) if finding.level == "must"]


def test_a_harvested_partition_goes_below_the_regular_ones_without_touching_them() -> None:
    raised = option("batch", "PriorityTier", "10")(recorded("stock"))
    for site, tier in ((recorded("stock"), "0"), (raised, "1")):
        after = advise(site, RULES).after
        assert after.partitions["elastic"]["PriorityTier"] == tier
        assert after.partitions["batch"]["PriorityTier"] == site.partitions["batch"]["PriorityTier"]


def test_a_regular_partition_at_the_bottom_is_raised() -> None:
    after = advise(option("batch", "PriorityTier", "0")(recorded("stock")), RULES).after
    assert (after.partitions["elastic"]["PriorityTier"], after.partitions["batch"]["PriorityTier"]) == ("0", "10")


def test_who_names_no_nodes_for_the_drivers_is_asked_for_them() -> None:
    site = replace(recorded("stock"), node_names=("n1", "n2"))
    with pytest.raises(NoNodes, match="--driver-nodes"):
        advise(site, RULES)
    after = advise(site, RULES, driver_nodes="n2").after
    assert (after.partitions["elastic"]["Nodes"], after.partitions["bft-driver"]["Nodes"]) == ("n1", "n2")


def test_a_file_of_the_site_s_own_is_added_to_and_never_replaced() -> None:
    site = recorded("recommended")
    own = replace(site, lua=replace(site.lua, text="function slurm_job_submit() return 0 end\n"))
    assert "function slurm_job_submit" not in render(advise(own, RULES), "job_submit.lua")
    assert "function slurm_job_submit" in render(advise(recorded("stock"), RULES), "job_submit.lua")


def test_lines_that_are_commented_out_load_nothing() -> None:
    assert lua_settings('-- dofile("/x/bftd.lua")\n-- bftd.install({})\n') is None
    assert lua_settings('b = dofile("bftd.lua")\nb.install({ a = { 0, 1 }, partition = "p" })') == {"partition": "p"}


def test_an_answer_that_is_cut_short_is_no_configuration() -> None:
    text = (ASSETS / "22.05" / "stock" / "config.txt").read_text()
    for cut in ("", text[:3000], text.partition("UnkillableStepTimeout")[0]):
        with pytest.raises(SnapshotError):
            parse_config(cut)


def test_existing_lines_are_replaced_and_extended_as_the_lines_say() -> None:
    conf = "KillWait=30\nPartitionName=batch Nodes=n1 PreemptMode=CANCEL\n"
    printed = "# why\nKillWait=2\n# in the line PartitionName=batch, set:\n#+ PreemptMode=OFF\n"
    assert applied(conf, printed) == "KillWait=2\nPartitionName=batch Nodes=n1 PreemptMode=OFF\n"


def test_a_partition_that_is_not_there_gets_one_finding_not_twenty() -> None:
    names = [finding.rule.name for finding in check(without("elastic")(recorded("recommended")), RULES)]
    assert [name for name in names if name.startswith("harvested partition")] == ["harvested partition"]


@settings(deadline=None)
@given(st.floats(60, 400_000))
def test_the_partition_s_limit_fits_pilots_of_any_longest_limit(limit_s: float) -> None:
    site = recorded("recommended")
    advised = advise(replace(site, wanted=replace(site.wanted, pilot_limit_s=limit_s)), RULES)
    assert wrong(advised.after).keys() <= {"SchedulerParameters: bf_window"}, "which is the site's own"


def _two_tiers(site: Site) -> Site:
    urgent = {**site.partitions["batch"], "PriorityTier": "20", "PreemptMode": "OFF"}
    return replace(site, partitions={**site.partitions, "urgent": urgent})


def test_preemption_among_a_site_s_own_partitions_is_told_and_left_alone() -> None:
    site = option("batch", "PreemptMode", "REQUEUE")(_two_tiers(recorded("recommended")))
    assert wrong(site) == {"regular partitions: PreemptMode": "advice"}
    assert render(advise(site, RULES), "slurm.conf") == ""


def test_partitions_of_the_same_tier_do_not_preempt_each_other() -> None:
    site = option("batch", "PreemptMode", "CANCEL")(_two_tiers(recorded("recommended")))
    assert not wrong(option("urgent", "PriorityTier", site.partitions["batch"]["PriorityTier"])(site))


@pytest.mark.parametrize("mode", ["OFF", "CANCEL"])
def test_turning_preemption_on_makes_no_regular_job_preemptable(mode: str) -> None:
    site = option("batch", "PreemptMode", mode)(_two_tiers(recorded("stock")))
    site = setting("PreemptMode", mode)(setting("PreemptType", "preempt/qos")(site))
    after = advise(site, RULES).after
    assert after.config["PreemptType"] == "preempt/partition_prio"
    assert {after.partitions[name]["PreemptMode"] for name in ("batch", "urgent")} == {"OFF"}


def test_regression_pilots_are_kept_out_of_what_a_site_charges_its_users() -> None:
    site = setting("AccountingStorageType", DBD)(recorded("stock"))
    printed = render(advise(site, RULES), "slurm.conf")
    assert " TRESBillingWeights=CPU=0" in printed.partition("\nPartitionName=elastic ")[2].splitlines()[0]
    assert "bft-pilots" not in render(advise(site, RULES), "job_submit.lua"), "no limit is enforced"
    limited = setting("AccountingStorageEnforce", "associations,limits,safe")(site)
    lua = render(advise(limited, RULES), "job_submit.lua")
    command = wording("slurm_plugin.accounts.no_usage", QOS="bft-pilots")
    assert wording("slurm_plugin.plugins.once", command=command) in lua
    assert lua_settings(lua) == {"qos": "bft-pilots"}


def test_a_qos_of_the_site_s_own_is_as_good() -> None:
    own = both(setting("AccountingStorageType", DBD), setting("AccountingStorageEnforce", "safe"))
    site = own(option("elastic", "TRESBillingWeights", "CPU=0")(recorded("recommended")))
    lua = replace(site.lua, text=site.lua.text.replace("{}", '{ qos = "free" }'))
    site = replace(site, lua=lua, usage_factors={"free": 0.0})
    assert wrong(site) == {"AccountingStorageEnforce": "advice"}
