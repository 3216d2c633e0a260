"""The options of jobs if all servers were one, and the resulting prices of CPUs and memory against each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from studies.synergy.packing.greedy_fill import Prices, Steps, Stock, begin, fill
from studies.synergy.packing.job_options import Menu

SAMPLE = 64
"""Number of jobs that determine the prices: more take time and change them little."""
HALVINGS = 5
"""Halvings of the interval of exponents in which the ratio of the prices is searched."""
WIDEST = 5.0
"""One price is at most 2 to this power times the other; beyond that the dearer one alone decides."""
BESIDE = (0.0, 1.5, -1.5, 3.0, -3.0)
"""Exponents to try next to the best on one large server, which need not be the best on several."""

Most = Callable[[int], tuple[float, float]]
"""A function that returns the most shares of CPUs and memory per GPU of an unsplit job, from its GPUs."""


def most_of(menus: Sequence[Menu], servers: int, per_server: int) -> Most:
    """Return the limit of what is left for one job when all others on its server have the smallest of all options."""
    idle = servers * per_server - sum(menu.gpus for menu in menus)
    least_cpus = min((option.cpus for menu in menus for option in menu.options), default=0.0)
    least_memory = min((option.memory for menu in menus for option in menu.options), default=0.0)

    def most(gpus: int) -> tuple[float, float]:
        here = min(gpus, per_server)
        others = max(0, per_server - here - idle)
        return (per_server - others * least_cpus) / here, (per_server - others * least_memory) / here

    return most


def pooled(steps: Sequence[Steps], shares: float) -> tuple[list[int], Stock]:
    """Return the option of each job on one server with `shares`, and the rest of its stock."""
    stock = Stock(1, shares)
    places = [((0, each.menu.gpus),) for each in steps]
    chosen = begin(steps, places, stock)
    fill(steps, places, stock, chosen)
    return chosen, stock


def prices_of(menus: Sequence[Menu], shares: float, most: Most) -> list[Prices]:
    """Return the prices at which the jobs gain most from `shares`, followed by prices on both sides of them.

    The resource that runs out first is made dearer, as in the dual of the linear program: for two resources only the
    ratio of their prices matters. If every job has its best option, no other prices are needed.
    """
    stride = -(-len(menus) // SAMPLE) or 1
    sample = menus[::stride]
    shares *= sum(menu.gpus for menu in sample) / max(1, sum(menu.gpus for menu in menus))
    best, best_value = 0.0, -1.0
    low, high = -WIDEST, WIDEST
    for _ in range(HALVINGS):
        exponent = (low + high) / 2
        steps = steps_of(sample, _prices(exponent), most)
        chosen, stock = pooled(steps, shares)
        value = sum(menu.gpus * menu.options[i].value for menu, i in zip(sample, chosen, strict=True))
        if value > best_value:
            best, best_value = exponent, value
        if all(each.best(i) is None for each, i in zip(steps, chosen, strict=True)):
            return [_prices(best)]
        if stock.cpus[0] < stock.memory[0]:
            low = exponent
        else:
            high = exponent
    return [_prices(best + beside) for beside in BESIDE]


def _prices(exponent: float) -> Prices:
    """Return prices with a ratio of CPUs to memory of this power of 2."""
    return Prices(2.0 ** (exponent / 2), 2.0 ** (-exponent / 2))


def steps_of(menus: Sequence[Menu], prices: Prices, most: Most) -> list[Steps]:
    """Return the steps of each menu, shared between equal menus."""
    known: dict[int, Steps] = {}
    return [known.setdefault(id(menu), Steps(menu, prices, most(menu.gpus))) for menu in menus]
