"""`python -m studies.synergy simulate`: rounds of scheduling on servers that share GPUs, CPUs and memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bftd.base.errors import UsageError
from bftd.cli import common, options
from bftd.cli.progress import progress_bar

if TYPE_CHECKING:
    from studies.simulation.report import Interval
    from studies.synergy.comparison import Figures
    from studies.synergy.packing.types import Servers

_MOST_SERVERS, _MOST_JOBS = 1024, 20_000
_USUAL = ("fifo-proportional", "fifo-greedy", "fifo-tune", "fifo-priced")
_COUNT, _SERVERS, _LOAD = 600, 16, 1.0


@click.command()
@click.option("--matrices", "path", required=True, metavar="FILE.json", help="Recorded sensitivity matrices.")
@click.option("--servers", "count", type=click.IntRange(1, _MOST_SERVERS), metavar="N", help="Default 16.")
@click.option("--server", "shape", metavar="GPUS/CPUS/GB", help="What each has; default 8/24/500.")
@click.option("--mix", required=True, metavar="I/L/S", help="Percentages of image, language and speech jobs: 20/70/10.")
@click.option("--policy", "policies", multiple=True, metavar="ORDER-PACKER", help="May be given several times.")
@click.option("--seeds", type=click.IntRange(1, 100), default=3, metavar="N", help="How many; default 3.")
@click.option("--count", "jobs", type=click.IntRange(2, _MOST_JOBS), metavar="N", help="Jobs; default 600.")
@click.option("--load", type=click.FloatRange(0.01, 100), metavar="X", help="GPUs that jobs ask for; default 1.")
@options.as_json
def simulate(
    path: str,
    count: int | None,
    shape: str | None,
    mix: str,
    policies: Sequence[str],
    seeds: int,
    jobs: int | None,
    load: float | None,
    as_json: bool,
) -> None:
    """Compare orders and packers on simulated servers.

    Jobs of one GPU are drawn from the matrices and share servers' CPUs and memory too, in rounds of 5 minutes. A policy
    is ORDER-PACKER: fifo, srtf, las or ftf, and proportional, greedy, tune, priced or opt.
    """
    from sizing.cpu.matrices_file import load as matrices_of
    from studies.synergy import comparison
    from studies.synergy.generated_jobs import drawn
    from studies.synergy.packing.draw import mix_of
    from studies.synergy.packing.parse_servers import PAPERS, servers_of

    shares, servers = mix_of(mix), servers_of(shape or PAPERS, count or _SERVERS)
    names = {name: _parts(name) for name in dict.fromkeys(policies or _USUAL)}
    matrices, each_jobs, at_load = matrices_of(Path(path)), jobs or _COUNT, load or _LOAD
    runs: dict[str, list[Figures]] = {name: [] for name in names}
    with progress_bar("Simulating") as done:
        for seed in range(seeds):
            every = drawn(matrices, shares, servers, seed=seed, count=each_jobs, load=at_load)
            for at, (name, (order, packer)) in enumerate(names.items()):
                runs[name].append(comparison.run(order, packer, every, servers, matrices))
                done((seed * len(names) + at + 1) / (seeds * len(names)))
    if as_json:
        asked = {"jobs": each_jobs, "load": at_load, "mix": mix, "gpus": servers.count * servers.gpus, "seeds": seeds}
        common.echo_json({**_to_json(runs), **asked})
        return
    common.echo(_shown(runs, servers, f"{each_jobs} jobs ({mix}), load {at_load:g}", seeds))


def _parts(name: str) -> tuple[str, str]:
    """Split a policy's name into its order and its packer; raises UsageError unless both exist."""
    from studies.synergy.comparison import repacker
    from studies.synergy.job_orders import ORDERS, order

    first, dash, second = name.partition("-")
    if not dash:
        example = f"{next(iter(ORDERS))}-priced"
        raise UsageError(f"--policy {name[:40]!r}: it is ORDER-PACKER, as in {example}")
    order(first)
    repacker(second)
    return first, second


def _speedup(runs: Mapping[str, Sequence[Figures]], name: str) -> Interval | None:
    """Return the first policy's mean completion time divided by another's, paired by seed."""
    from studies.simulation.report import paired

    first = next(iter(runs.values()))
    return paired([each.mean_jct_s for each in first], [each.mean_jct_s for each in runs[name]])


def _to_json(runs: Mapping[str, Sequence[Figures]]) -> dict[str, Any]:
    from studies.simulation.report import interval
    from studies.synergy.comparison import NAMES

    told: dict[str, Any] = {}
    for name, found in runs.items():
        ratio = _speedup(runs, name)
        told[name] = {each: interval([getattr(one, each) for one in found]).to_json() for each in NAMES}
        told[name]["speedup"] = ratio and ratio.to_json()
    return {"policies": told}


def _shown(runs: Mapping[str, Sequence[Figures]], servers: Servers, jobs: str, seeds: int) -> Iterable[str]:
    """Yield a line for each policy, and the assumptions."""
    from bftd.base.tables import Column
    from studies.simulation.report import interval
    from studies.synergy.comparison import EDGE

    columns = [
        Column("POLICY"),
        Column("MEAN JCT", right=True),
        Column("99 %", rank=2, right=True),
        Column("QUEUED", rank=1, right=True),
        Column("GPUS BUSY", rank=2, right=True),
        Column("SLOWEST JOB", rank=1, right=True),
        Column("RESTARTS", rank=3, right=True),
        Column("SPEEDUP", right=True),
    ]
    rows: list[tuple[str, ...]] = []
    for name, found in runs.items():
        mean = {each: interval([getattr(one, each) for one in found]).value for each in _MEANS}
        ratio = _speedup(runs, name) if rows else None
        within = f" ({ratio.low:.2f} to {ratio.high:.2f})" if ratio and seeds > 1 else ""
        rows.append(
            (
                name,
                *(f"{mean[each] / 3600:.2f} h" for each in ("mean_jct_s", "p99_jct_s", "mean_queue_s")),
                f"{mean['busy']:.0%}",
                f"{min(one.slowest for one in found):.2f}",
                f"{mean['restarts']:.1f}",
                f"{ratio.value:.2f}x{within}" if ratio else "-",
            )
        )
    yield from common.table(columns, rows)
    yield (
        f"{jobs}, {seeds} seed{'s' * (seeds > 1)}, {servers.count} server{'s' * (servers.count > 1)} of {servers.gpus} "
        f"GPUs, {servers.cpus:g} CPUs and {servers.memory_bytes / 1e9:g} GB"
    )
    yield (
        "SPEEDUP: of the mean JCT over the first policy's"
        + (", with the 95 % confidence interval" if seeds > 1 else "")
        + "; SLOWEST JOB: 1 is with a GPU's share of a server"
    )
    yield (
        f"Servers begin as full as the load keeps them; figures are of the {1 - 2 * EDGE:.0%} of jobs in the middle. "
        "At a load of 1 and above queues grow for as long as it lasts, and with them the speedup"
    )


_MEANS = ("mean_jct_s", "p99_jct_s", "mean_queue_s", "busy", "restarts")
