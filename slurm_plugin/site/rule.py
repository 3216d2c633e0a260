"""A rule: one setting, its right value, the reason, and the cost of another value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from slurm_plugin.site.model import Site

Level = Literal["ok", "advice", "must"]
File = Literal["slurm.conf", "plugstack.conf", "job_submit.lua", "bftd.toml"]

NOT_SHOWN = "not shown"


@dataclass(frozen=True, slots=True)
class Edit:
    """One change that makes a rule hold.

    `target` is the place in the file: "" is a line of its own, "SchedulerParameters" an option in that list, a
    partition as "PartitionName=batch" an option of its line, "[slurm]" a key of that section. `key` alone, without a
    `value`, is an option without a value or, in plugstack.conf and job_submit.lua, the whole line.
    """

    file: File
    target: str
    key: str
    value: str = ""

    @property
    def text(self) -> str:
        """The change as the file writes it."""
        return f"{self.key}={self.value}" if self.value else self.key


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule on one setting.

    `wrong` is the level of a finding if `holds` is false; `loses` says what that costs a site, with measured figures.
    `edits` is empty if no line of ours can make the rule hold. A rule that does not apply to a site makes no finding.
    """

    name: str
    right: str
    why: str
    loses: str
    wrong: Literal["advice", "must"]
    seen: Callable[[Site], str]
    holds: Callable[[Site], bool]
    edits: Callable[[Site], Sequence[Edit]] = lambda site: ()
    applies: Callable[[Site], bool] = lambda site: True


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of one rule on one site."""

    rule: Rule
    level: Level
    seen: str


def check(site: Site, rules: Iterable[Rule]) -> tuple[Finding, ...]:
    """Check a site against the rules that apply to it, in their order. A setting that is not shown is never right."""
    findings = []
    for rule in rules:
        if rule.applies(site):
            seen = rule.seen(site)
            right = seen != NOT_SHOWN and rule.holds(site)
            findings.append(Finding(rule, "ok" if right else rule.wrong, seen))
    return tuple(findings)
