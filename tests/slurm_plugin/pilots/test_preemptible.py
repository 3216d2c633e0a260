"""Which partitions the daemon harvests: the same judgement as that of `bft site check`."""

from __future__ import annotations

import pytest

from slurm_plugin.pilots.preemptible import objection
from slurm_plugin.site import RULES, check
from tests.slurm_plugin.site.sites import Spoil, option, recorded, setting, without
from tests.support.messages import excerpt, says, wording

RELEASES = ["22.05", "24.11", "26.05"]
NAMES = ("PreemptType", "harvested partition: PriorityTier", "harvested partition: PreemptMode")


def judged(spoil: Spoil | None = None, release: str = "22.05", name: str = "elastic") -> str:
    """What the daemon says of a recorded site."""
    site = recorded("recommended", release)
    site = spoil(site) if spoil else site
    return objection(site.config, site.partitions, (name,))


@pytest.mark.parametrize("release", RELEASES)
def test_what_bft_site_config_prints_may_be_harvested(release: str) -> None:
    assert judged(release=release) == ""


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("kind", ["recommended", "stock"])
def test_regression_a_regular_partition_was_harvested_when_it_was_named_by_mistake(kind: str, release: str) -> None:
    site = recorded(kind, release)
    assert objection(site.config, site.partitions, ("batch",))


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (setting("PreemptType", "preempt/none"), "set PreemptType=preempt/partition_prio (now preempt/none)"),
        (setting("PreemptType", "(null)"), "set PreemptType=preempt/partition_prio"),
        (option("elastic", "PreemptMode", "OFF"), excerpt("slurm_plugin.preemptible.not_preemptible", mode="OFF")),
        (option("elastic", "PreemptMode", "GANG,SUSPEND"), "set PreemptMode=CANCEL on it"),
        (
            option("elastic", "PriorityTier", "1"),
            excerpt(
                "slurm_plugin.preemptible.no_lower_tier",
                name2="elastic",
                name3="elastic",
                tier=1,
                other2="batch",
                options=1,
            ),
        ),
        (
            option("batch", "PriorityTier", "0"),
            excerpt(
                "slurm_plugin.preemptible.no_lower_tier",
                name2="elastic",
                name3="elastic",
                tier=0,
                other2="batch",
                options=0,
            ),
        ),
        (option("elastic", "Default", "YES"), "set Default=NO on it"),
        (without("elastic"), wording("slurm_plugin.preemptible.no_partition", name="elastic")),
    ],
)
def test_every_other_site_is_refused_in_one_line_that_says_what_to_change(spoil: Spoil, told: str) -> None:
    said = judged(spoil)
    assert told in said
    assert "\n" not in said


def test_a_tier_matters_only_where_nodes_are_shared() -> None:
    def elsewhere(site):  # type: ignore[no-untyped-def]
        return option("batch", "Nodes", "m[1-2]")(option("batch", "PriorityTier", "0")(site))

    assert judged(elsewhere) == ""


def test_under_preempt_qos_tiers_say_nothing() -> None:
    def by_qos(site):  # type: ignore[no-untyped-def]
        return option("elastic", "PriorityTier", "1")(setting("PreemptType", "preempt/qos")(site))

    assert judged(by_qos) == ""
    assert says(judged(by_qos, name="batch"), "slurm_plugin.preemptible.default_partition")


def test_several_harvested_partitions_do_not_stand_in_each_others_way() -> None:
    site = recorded("recommended")
    both = {**site.partitions, "elastic2": site.partitions["elastic"]}
    assert objection(site.config, both, ("elastic", "elastic2")) == ""
    assert says(objection(site.config, both, ("elastic",)), "slurm_plugin.preemptible.no_lower_tier", name2="elastic")


@pytest.mark.parametrize("mode", ["CANCEL", "REQUEUE", "SUSPEND", "OFF", "GANG,SUSPEND"])
@pytest.mark.parametrize("tier", ["0", "1", "2"])
@pytest.mark.parametrize("kind", ["preempt/partition_prio", "preempt/none"])
def test_the_daemon_starts_exactly_where_bft_site_check_finds_no_fault(mode: str, tier: str, kind: str) -> None:
    site = setting("PreemptType", kind)(recorded("recommended"))
    site = option("elastic", "PriorityTier", tier)(option("elastic", "PreemptMode", mode)(site))
    faults = [item for item in check(site, RULES) if item.rule.name in NAMES and item.level != "ok"]
    assert bool(faults) == bool(objection(site.config, site.partitions, ("elastic",)))
