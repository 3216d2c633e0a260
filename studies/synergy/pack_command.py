"""`python -m studies.synergy pack`: packs jobs of recorded matrices on servers, by each of Synergy's policies."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bftd.cli import common, options

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from studies.synergy.packing.types import Packing, PackJob, Servers

_MOST_SERVERS = 1024


@click.command()
@click.option("--matrices", "path", required=True, metavar="FILE.json", help="Recorded sensitivity matrices.")
@click.option("--servers", "count", required=True, type=click.IntRange(1, _MOST_SERVERS), metavar="N", help="How many.")
@click.option("--server", "shape", metavar="GPUS/CPUS/GB", help="What each has; default 8/24/500.")
@click.option("--mix", required=True, metavar="I/L/S", help="Percentages of image, language and speech jobs.")
@click.option(
    "--policy", default="priced", metavar="NAME", help="priced (the default), tune, opt, greedy or proportional."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, metavar="N", help="Of the draw; default 0.")
@options.as_json
def pack(path: str, count: int, shape: str | None, mix: str, policy: str, seed: int, as_json: bool) -> None:
    """Tell how fast a mix of jobs would train with CPUs and memory by need.

    Draws one-GPU jobs of the percentages in --mix until they ask for all GPUs, packs them on N servers, and compares
    with servers that are shared by GPUs. FILE.json has the form of Synergy's public matrices (docs/evidence/cpu.md).
    """
    from sizing.cpu.matrices_file import load
    from studies.synergy.packing import throughput
    from studies.synergy.packing.draw import draw, mix_of
    from studies.synergy.packing.packers import packer
    from studies.synergy.packing.parse_servers import PAPERS, servers_of

    chosen = packer(policy)
    shares = mix_of(mix)
    servers = servers_of(shape or PAPERS, count)
    jobs = draw(load(Path(path)), shares, servers.count * servers.gpus, seed)
    for job in jobs:
        throughput.refuse_stopped(job, servers)
    began_s = time.perf_counter()
    packing = chosen(jobs, servers)
    wall_s = time.perf_counter() - began_s
    _refuse_broken(policy, packing, jobs, servers)
    answer = {
        "throughput_vs_proportional": throughput.mean(packing, jobs, servers),
        "min_job_vs_proportional": throughput.least(packing, jobs, servers),
        "gpus_used": sum(job.gpus for job in jobs if job.id in packing.shares),
        "gpus": servers.count * servers.gpus,
        "wall_ms": wall_s * 1e3,
    }
    if as_json:
        common.echo_json(answer)
        return
    common.echo(_shown(policy, answer, jobs, servers))


def _refuse_broken(policy: str, packing: Packing, jobs: Sequence[PackJob], servers: Servers) -> None:
    from sizing.base.errors import SizingError
    from studies.synergy.packing.check import broken
    from studies.synergy.packing.packers import FAIR

    wrong = broken(packing, jobs, servers, floor=policy in FAIR)
    if wrong:
        raise SizingError(f"{policy} made a packing that cannot be ({wrong[0]}): this is a mistake of bft's, report it")


def _shown(policy: str, answer: dict[str, float], jobs: Sequence[PackJob], servers: Servers) -> Iterable[str]:
    from studies.synergy.optimum.pooled import bounds

    yield (
        f"{len(jobs)} jobs on {servers.count} server{'s' * (servers.count > 1)} "
        f"of {servers.gpus} GPU{'s' * (servers.gpus > 1)}, "
        f"{servers.cpus:g} CPUs and {servers.memory_bytes / 1e9:g} GB"
    )
    yield (
        f"{policy}: {answer['throughput_vs_proportional']:.3f} times the throughput of servers shared by GPUs; the "
        f"slowest job {answer['min_job_vs_proportional']:.3f} times; {answer['gpus_used']} of {answer['gpus']} GPUs "
        f"used; {answer['wall_ms']:.1f} ms"
    )
    most = bounds(jobs, servers)
    yield (
        f"no packing without slower jobs has more than {most.relaxed:.3f} times ({most.whole:.3f} in cells of the "
        "matrices), even if all servers were one"
    )
