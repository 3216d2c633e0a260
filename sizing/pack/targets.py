"""What each job would have if all servers were one, and what CPUs and memory are then worth against each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sizing.pack.fill import Prices, Steps, Stock, begin, fill
from sizing.pack.menu import Menu

SAMPLE = 64
"""So many jobs tell what the prices are: more take time and change them little."""
HALVINGS = 5
"""Of the interval of exponents in which the ratio of the prices is looked for."""
WIDEST = 5.0
"""One price is at most 2 to this power times the other; beyond that the dearer one alone decides."""
BESIDE = (0.0, 1.5, -1.5, 3.0, -3.0)
"""Exponents beside the best on one great server, which on several need not be the best."""

Most = Callable[[int], tuple[float, float]]
"""The most shares of CPUs and memory for a GPU of a job with so many GPUs that is together on a server."""


def most_of(menus: Sequence[Menu], servers: int, per_server: int) -> Most:
    """What is left for one job when all others on its server have the least that anybody must have."""
    idle = servers * per_server - sum(menu.gpus for menu in menus)
    least_cpus = min((option.cpus for menu in menus for option in menu.options), default=0.0)
    least_memory = min((option.memory for menu in menus for option in menu.options), default=0.0)

    def most(gpus: int) -> tuple[float, float]:
        here = min(gpus, per_server)
        others = max(0, per_server - here - idle)
        return (per_server - others * least_cpus) / here, (per_server - others * least_memory) / here

    return most


def pooled(steps: Sequence[Steps], shares: float) -> tuple[list[int], Stock]:
    """The option of each job on one server with so many shares, and what is left of it."""
    stock = Stock(1, shares)
    places = [((0, each.menu.gpus),) for each in steps]
    chosen = begin(steps, places, stock)
    fill(steps, places, stock, chosen)
    return chosen, stock


def prices_of(menus: Sequence[Menu], shares: float, most: Most) -> list[Prices]:
    """Prices at which the jobs get most out of so many shares, and after these prices to both sides of them.

    What runs out first is made dearer, as in the dual of the linear program: for two resources the ratio of their
    prices is all there is to it. Where everyone has the best there is, no others are needed.
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
    """CPUs at so many times what memory costs, as a power of 2."""
    return Prices(2.0 ** (exponent / 2), 2.0 ** (-exponent / 2))


def steps_of(menus: Sequence[Menu], prices: Prices, most: Most) -> list[Steps]:
    """The steps of each menu, those of the same menu once."""
    known: dict[int, Steps] = {}
    return [known.setdefault(id(menu), Steps(menu, prices, most(menu.gpus))) for menu in menus]
