"""Run the simulated world for days from a seed: `python -m tools.year --seed 1 --days 1 --faults all --json`.

It ends with 1 if a rule breaks, and prints the seed, the commit and the last events before that. `--log` writes all
events to a file. The same seed, options and commit give the same events.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import click

from bftd.simulation.world.faults import KINDS
from bftd.simulation.world.world import WorldSettings, run

_LAST = 30


@click.command()
@click.option("--seed", type=int, required=True, help="Seed of everything that is left to chance.")
@click.option("--days", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True, help="Days.")
@click.option("--faults", default="all", show_default=True, help=f"all, none, or one of {', '.join(KINDS)}.")
@click.option("--nodes", type=click.IntRange(min=1), default=8, show_default=True, help="Nodes of the cluster.")
@click.option("--trainers", type=click.IntRange(min=0), default=3, show_default=True, help="Trainers.")
@click.option("--steps", type=click.IntRange(min=1), default=2000, show_default=True, help="Steps of each trainer.")
@click.option("--log", type=click.Path(dir_okay=False, path_type=Path), help="File for all events.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(
    seed: int, days: float, faults: str, nodes: int, trainers: int, steps: int, log: Path | None, as_json: bool
) -> None:
    """Run the daemon and drivers in a simulated world, and look at every rule after every event."""
    if faults not in ("all", "none", *KINDS):
        raise click.UsageError(f"--faults is all, none, or one of {', '.join(KINDS)}, not {faults!r}")
    kinds = tuple(KINDS) if faults == "all" else () if faults == "none" else (faults,)
    begun_s, cpu_s = time.monotonic(), time.process_time()
    result = run(WorldSettings(seed, 24.0 * days, nodes, trainers, steps, faults=kinds))
    cpu_s = time.process_time() - cpu_s
    if log is not None:
        log.write_text("\n".join(result.log) + "\n", encoding="utf-8")
    counts = dict.fromkeys(kinds, 0)
    for kind in result.struck:
        counts[kind] += 1
    shown = {
        "seed": seed,
        "commit": _commit(),
        "days": result.simulated_s / 86_400.0,
        "events": result.events,
        "events_per_cpu_s": result.events / cpu_s if cpu_s else 0.0,
        "took_s": time.monotonic() - begun_s,
        "cpu_s": cpu_s,
        "faults": counts,
        "violation": result.violation,
        "last": result.log[-_LAST:] if result.violation else [],
        "digest": result.digest,
    }
    if as_json:
        click.echo(json.dumps(shown, indent=2))
    else:
        for line in result.log[-_LAST:] if result.violation else ():
            click.echo(line)
        click.echo(
            f"seed {seed} at {shown['commit']}: {result.events} events in {result.simulated_s / 86_400.0:.2f} days, "
            f"{len(result.struck)} faults: {result.violation or 'every rule held'}"
        )
    sys.exit(bool(result.violation))


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    main()
