"""Recipes: small changes of a slurm.conf, one at a time."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from types import SimpleNamespace

import pytest

from benchmarks.impact.recipe import MAIN, RECIPES, control_of, without_bftd
from benchmarks.impact.site import Site

pytestmark = pytest.mark.slow


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


def test_displaced_runs_hold_every_node_in_an_order_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(RECIPES["default-displaced"], 16)
    held: list[str] = []
    client = SimpleNamespace(run=lambda *words: held.append(words[4]))
    monkeypatch.setattr(site.cluster, "client", lambda: client)
    orders = []
    for name in ("1 0", "1 0", "1 1", "2 0"):
        site.hold_every_node(Random(name))
        orders.append(tuple(held))
        held.clear()
    assert {tuple(sorted(order)) for order in orders} == {
        tuple(sorted(f"--nodelist=n{number}" for number in range(1, 17)))
    }
    assert orders[0] == orders[1]
    assert len(set(orders)) == 3
