"""Recipes: small changes of a slurm.conf, one at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.impact.recipe import MAIN, RECIPES, control_of, without_bftd

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
