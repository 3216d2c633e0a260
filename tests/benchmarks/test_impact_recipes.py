"""Recipes: small changes of a slurm.conf."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.impact.recipe import MAIN, RECIPES, Recipe, control_of, edited_conf, without_bftd
from bftd.config.keys import Config, PoolConfig
from bftd.core.model.events import Registered
from bftd.ledger.file import Ledger
from bftd.protocol.registration import Registration
from bftd.protocol.sizes import Sizes
from bftd.service.service import Service

pytestmark = pytest.mark.slow

CONF = """\
ClusterName=sandbox
PreemptType=preempt/partition_prio
SchedulerParameters=batch_sched_delay=0,bf_interval=1,bf_continue
KillWait=2
PartitionName=batch Nodes=n1 PriorityTier=10
PartitionName=elastic Nodes=n1 PriorityTier=1 PreemptMode=CANCEL GraceTime=0
"""


def test_a_key_that_is_there_is_replaced_and_one_that_is_not_is_added_once() -> None:
    text = edited_conf(CONF, Recipe("x", "", slurm={"KillWait": "30", "PriorityType": "priority/multifactor"}))
    lines = text.splitlines()
    assert lines.count("KillWait=30") == 1
    assert "KillWait=2" not in lines
    assert lines.count("PriorityType=priority/multifactor") == 1


def test_one_word_of_the_schedulers_parameters_is_replaced() -> None:
    text = edited_conf(CONF, Recipe("x", "", scheduler=("bf_interval=30", "bf_resolution=1")))
    assert "SchedulerParameters=batch_sched_delay=0,bf_interval=30,bf_continue,bf_resolution=1\n" in text


def test_the_elastic_partition_alone_is_changed() -> None:
    text = edited_conf(CONF, Recipe("x", "", elastic={"GraceTime": "10"}))
    assert "PartitionName=elastic Nodes=n1 PriorityTier=1 PreemptMode=CANCEL GraceTime=10\n" in text
    assert "PartitionName=batch Nodes=n1 PriorityTier=10\n" in text


def test_recipes_that_differ_in_what_is_bftds_share_their_runs_without_it() -> None:
    for name in ("sbatch", "no-guard", "no-vacater", "debounce-1", "no-number", "grace-10", "tuned-no-earmarks"):
        assert without_bftd(RECIPES[name]) is RECIPES["tuned"]
    for name in ("default", "bf30", "slow", "multifactor", "qos", "kill-wait-30"):
        assert without_bftd(RECIPES[name]) is RECIPES[name]
    assert without_bftd(RECIPES["no-number-default"]) is RECIPES["default"]


def test_every_main_recipe_is_there_without_earmarks_and_without_bftd_on_displaced_nodes() -> None:
    for recipe in MAIN:
        without, control = RECIPES[f"{recipe.name}-no-earmarks"], RECIPES[control_of(recipe)]
        assert without.config == {"pool": {"earmark": False}}
        assert replace(without, name=recipe.name, text=recipe.text, config={}) == recipe
        assert replace(control, name=recipe.name, text=recipe.text, displaced=False) == recipe
        assert control_of(without) == control_of(recipe) == f"{recipe.name}-displaced"


def test_the_recipe_default_has_the_priority_number_and_nothing_else_of_its_own() -> None:
    default = RECIPES["default"]
    assert (default.tuned, default.number) == (False, True)
    assert edited_conf(CONF, default) == CONF


def test_the_slow_recipe_has_the_words_of_a_cycle_that_lasts() -> None:
    words = edited_conf(CONF, RECIPES["slow"]).splitlines()[2]
    assert words == (
        "SchedulerParameters=batch_sched_delay=0,bf_interval=30,bf_continue,bf_yield_interval=1,bf_yield_sleep=1000000"
    )


def test_a_recipe_without_changes_leaves_the_file_as_it_is() -> None:
    assert edited_conf(CONF, RECIPES["tuned"]) == CONF


def test_the_recipe_without_a_guard_is_the_sites_key_which_the_daemon_hands_to_drivers(tmp_path: Path) -> None:
    assert {name for name, recipe in RECIPES.items() if "min_window_s" in recipe.config.get("pool", {})} == {"no-guard"}
    with closing(Ledger(tmp_path / "ledger")) as ledger:
        config = Config(pool=PoolConfig(**RECIPES["no-guard"].config["pool"]))
        service = Service(config, ledger, lambda job_ids: None)
        service.apply(Registered(service.now(), Registration("7", "a", "torchrun", Sizes(1, 4), "ada", "elastic")))
        listed = service.welcome("7").listed
    assert listed.min_window_s == 0.0
