"""Slurm's multifactor priority: age, job size, partition, QOS, and fair share by Fair Tree. Pure.

Fair Tree ranks the users: at each level of the tree of accounts, siblings are ordered by shares over usage (each as a
part of the siblings' sum), and an account's users come in its place. The factor is the rank over the number of users.
Usage is node-seconds, and halves each PriorityDecayHalfLife. Every PriorityCalcPeriod Slurm adds what running jobs have
used since the last time, ranks the users, and gives all waiting jobs their priority anew; a job that comes in between
gets the factors of the last time. (Read in priority/multifactor of 22.05 and 26.05.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

ROOT = "root"
_DAY_S = 86_400.0
_MOST = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Association:
    """An account below its parent, or with `user` the user of an account; it has `shares` among its siblings."""

    account: str
    parent: str = ROOT
    user: str = ""
    shares: int = 1


@dataclass(frozen=True, slots=True)
class Multifactor:
    """The settings of priority/multifactor: weights of the factors, which are from 0 to 1, and times in seconds.

    `qos` has the priorities of the QOS. Without half-life (0) nothing decays.
    """

    age: int = 0
    fair_share: int = 0
    job_size: int = 0
    partition: int = 0
    qos_weight: int = 0
    qos: Mapping[str, int] = field(default_factory=dict)
    associations: Sequence[Association] = ()
    max_age_s: float = 7 * _DAY_S
    half_life_s: float = 7 * _DAY_S
    calc_period_s: float = 300.0
    favor_small: bool = False

    def of(self, age_s: float, size: float, partition: float, qos: str, share: float) -> int:
        """Return the priority of a job that has waited for `age_s` and wants the part `size` of all nodes.

        `partition` is its partition's PriorityJobFactor over the greatest one, `share` the factor of its user.
        """
        most = max(self.qos.values(), default=0)
        total = (
            self.age * min(1.0, max(0.0, age_s // 1.0 / self.max_age_s))
            + self.fair_share * share
            + self.job_size * (1.0 - size if self.favor_small else size)
            + self.partition * partition
            + self.qos_weight * (self.qos.get(qos, 0) / most if most else 0.0)
        )
        return min(max(int(total), 1), _MOST)


class FairTree:
    """The usage of accounts and users, and the factors of the users."""

    def __init__(self, settings: Multifactor) -> None:
        self._daily = 1.0 - 0.693 / settings.half_life_s if settings.half_life_s > 0.0 else 1.0
        self._parents = {one.account: one.parent for one in settings.associations if not one.user}
        self._children: dict[str, list[Association]] = {}
        self._users = 0
        for one in settings.associations:
            self._children.setdefault(one.account if one.user else one.parent, []).append(one)
            self._users += bool(one.user)
        self.usage: dict[tuple[str, str], float] = {}

    def decay(self, for_s: float) -> None:
        """Let all usage decay for a time."""
        factor = self._daily**for_s
        for key in self.usage:
            self.usage[key] *= factor

    def add(self, account: str, user: str, nodes: int, for_s: float) -> None:
        """Add what a job has used lately, to its user and to all accounts above."""
        used = nodes * for_s * self._daily**for_s
        key: tuple[str, str] = account, user
        above: set[str] = set()
        while True:
            self.usage[key] = self.usage.get(key, 0.0) + used
            if account in above or not account:
                return
            above.add(account)
            key = account, ""
            account = self._parents.get(account, ROOT if account != ROOT else "")

    def factors(self) -> dict[tuple[str, str], float]:
        """Return the factor by account and user. Users of equal rank have the same."""
        found: dict[tuple[str, str], float] = {}
        self._rank(ROOT, self._users, False, found)
        return found

    def _rank(self, account: str, rank: int, tied: bool, found: dict[tuple[str, str], float]) -> int:
        """Rank the users below an account; `rank` is the last given one. Returns the last that this gave.

        Slurm gives the first user of an account that is level with the sibling before it the rank of the user before.
        """
        before: float | None = None
        levels = sorted(((self._level(one, account), one) for one in self._children.get(account, ())), key=_order)
        for place, (level, one) in enumerate(levels):
            level_tied = tied if place == 0 else level == before
            if one.user:
                if not level_tied:
                    rank = self._users - len(found)
                found[one.account, one.user] = rank / self._users
            else:
                rank = self._rank(one.account, rank, level_tied, found)
            before = level
        return rank

    def _level(self, one: Association, account: str) -> float:
        """Return an association's part of the siblings' shares over its part of their usage."""
        shares = sum(other.shares for other in self._children[account])
        if not one.shares:
            return 0.0
        above = self.usage.get((account, ""), 0.0)
        used = self.usage.get((one.account, one.user), 0.0) / above if above else 0.0
        return one.shares / shares / used if used else inf


def _order(entry: tuple[float, Association]) -> tuple[float, bool]:
    level, one = entry
    return -level, not one.user
