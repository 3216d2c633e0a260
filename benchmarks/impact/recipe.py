"""Recipes that are compared: settings of Slurm, of the daemon and of the pilots, a small record each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.impact.accounting import PILOT_QOS


@dataclass(frozen=True, slots=True)
class Recipe:
    """One way to run a site.

    `slurm` replaces or adds lines of slurm.conf by their key, `elastic` parameters of the elastic partition's line;
    `scheduler` replaces single words of SchedulerParameters. `config` is the daemon's. `number` says whether
    job_submit.lua gives pilots their priority number. `accounting` brings slurmdbd with a database; `pilot_options` are
    salloc's. `displaced` has no bftd at all, only an allocation on each node when the stream begins, which nobody
    renews: what such a start alone changes.
    """

    name: str
    text: str
    tuned: bool = True
    slurm: Mapping[str, str] = field(default_factory=dict)
    scheduler: tuple[str, ...] = ()
    elastic: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    number: bool = True
    accounting: bool = False
    pilot_options: tuple[str, ...] = ()
    displaced: bool = False


DEFAULT = Recipe("default", "all of Slurm's defaults; job_submit.lua gives pilots their priority number", tuned=False)
BF30 = Recipe("bf30", "the main scheduler works once a second, backfill every 30 s", scheduler=("bf_interval=30",))
SLOW = Recipe(
    "slow",
    "as bf30, and backfill sleeps a second at each job, so that a cycle lasts 9-30 s: a large machine in small",
    scheduler=("bf_interval=30", "bf_yield_interval=1", "bf_yield_sleep=1000000"),
)
TUNED = Recipe("tuned", "main scheduler and backfill work once a second, KillWait 2")

MAIN = (DEFAULT, BF30, SLOW, TUNED)
"""The recipes that are run by default, each also without earmarks."""

_SBATCH = {"slurm": {"pilot_mode": "sbatch"}}


def no_earmarks(recipe: Recipe) -> Recipe:
    """The same with a daemon that earmarks no nodes before Slurm asks."""
    return replace(
        recipe,
        name=f"{recipe.name}-no-earmarks",
        text=f"{recipe.name}, and bftd waits until Slurm preempts",
        config={"pool": {"earmark": False}},
    )


def displaced(recipe: Recipe) -> Recipe:
    """The same Slurm without bftd, where allocations that nobody renews are on the nodes when the stream begins."""
    return replace(
        recipe,
        name=f"{recipe.name}-displaced",
        text=f"{recipe.name} without bftd: the first jobs preempt allocations that nobody renews",
        displaced=True,
    )


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        *MAIN,
        *map(no_earmarks, MAIN),
        *map(displaced, MAIN),
        Recipe(
            "no-number-default",
            "all of Slurm's defaults and no job_submit.lua: Slurm refuses pilots while a job is queued",
            tuned=False,
            number=False,
        ),
        Recipe(
            "multifactor",
            "priority number under priority/multifactor",
            slurm={
                "PriorityType": "priority/multifactor",
                "PriorityWeightAge": "1000",
                "PriorityWeightJobSize": "1000",
            },
        ),
        Recipe(
            "qos",
            "preempt/qos with slurmdbd and MariaDB, priority by QOS",
            slurm={"PreemptType": "preempt/qos", "PriorityType": "priority/multifactor", "PriorityWeightQOS": "100000"},
            number=False,
            accounting=True,
            pilot_options=(f"--qos={PILOT_QOS}",),
        ),
        Recipe("no-number", "no job_submit.lua: Slurm refuses pilots while a job is queued", number=False),
        Recipe("sbatch", "pilots by sbatch, no job_submit.lua", config=_SBATCH, number=False),
        Recipe("no-guard", "pilots start whatever is planned", config={"pool": {"min_window_s": 0.0}}),
        Recipe("no-vacater", "pilots never leave ahead of a plan", config={"pool": {"vacate_ahead_s": 0.0}}),
        Recipe("debounce-1", "a node is offered after one idle poll", config={"pool": {"debounce_polls": 1}}),
        Recipe("poll-half", "bftd looks twice a second", config={"slurm": {"poll_s": 0.5}}),
        Recipe("spare-1", "one idle node is not lent while jobs wait", config={"pool": {"spare_nodes": 1}}),
        Recipe("kill-wait-30", "KillWait 30, as by default", slurm={"KillWait": "30"}),
        Recipe("grace-10", "GraceTime 10 for pilots", elastic={"GraceTime": "10"}),
    )
}


def without_bftd(recipe: Recipe) -> Recipe:
    """The first recipe whose runs without bftd are the same: all that differs is bftd's or the pilots'."""

    def controller(one: Recipe) -> tuple[object, ...]:
        return one.tuned, one.slurm, one.scheduler, one.accounting

    return next((other for other in RECIPES.values() if controller(other) == controller(recipe)), recipe)


def control_of(recipe: Recipe) -> str:
    """The name of the recipe whose runs say what a start with displaced jobs alone changes under the same Slurm."""
    return f"{without_bftd(recipe).name}-displaced"


def edited_conf(text: str, recipe: Recipe) -> str:
    """Apply a recipe to the text of a slurm.conf: each key stays there once, as Slurm wants it."""
    lines = []
    missing = dict(recipe.slurm)
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key in missing:
            line = f"{key}={missing.pop(key)}"
        elif key == "SchedulerParameters" and recipe.scheduler:
            line = f"{key}={_replaced(value, recipe.scheduler, ',')}"
        elif line.startswith("PartitionName=elastic ") and recipe.elastic:
            line = _replaced(line, tuple(f"{name}={value}" for name, value in recipe.elastic.items()), " ")
        lines.append(line)
    return "\n".join([*(f"{key}={value}" for key, value in missing.items()), *lines]) + "\n"


def _replaced(text: str, words: tuple[str, ...], separator: str) -> str:
    given = {word.partition("=")[0]: word for word in words}
    kept = [given.pop(word.partition("=")[0], word) for word in text.split(separator)]
    return separator.join([*kept, *given.values()])
