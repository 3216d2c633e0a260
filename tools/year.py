"""Run the simulated world from a seed, or worlds of fresh seeds for a while, and look at every rule after every event.

    python -m tools.year --seed 1 --days 1 --faults all --json
    python -m tools.year --minutes 60
    python -m tools.year --replay FILE

The same seed, options and commit give the same events. If a rule breaks, it prints the seed, the commit and the
shortest history found that still breaks it, as `--replay` takes it, and ends with 1.
"""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from itertools import count
from pathlib import Path
from time import monotonic, process_time  # the world sets those of the module `time`
from typing import Any

import click

from benchmarks import markdown
from benchmarks.evidence.model import Benchmark
from bftd.simulation.world.faults import history
from bftd.simulation.world.faults.kinds import KINDS
from bftd.simulation.world.faults.shrinking import shrunk
from bftd.simulation.world.night import drawn_settings
from bftd.simulation.world.workloads import WORKLOADS
from bftd.simulation.world.world import WorldResult, WorldSettings, run

_LAST = 30
_SHRINK_S = 120.0
_HANG_S = 600.0
_WIDTH = 160

_EVIDENCE_MINUTES = 120
_EVIDENCE_SEEDS = {"year_first": 1, "year_second": 1_000_001}


def _kinds(context: click.Context, option: click.Parameter, text: str) -> tuple[str, ...]:
    kinds = {"all": tuple(KINDS), "none": ()}.get(text, tuple(text.split(",")))
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        raise click.BadParameter(f"{unknown[0]!r} is not all, none, or some of {', '.join(KINDS)}")
    return kinds


@click.command()
@click.option("--seed", type=int, help="Seed of everything that is left to chance; with --minutes the first.")
@click.option("--days", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True, help="Days.")
@click.option("--faults", default="all", callback=_kinds, help="all, none, or some of the kinds: KIND,KIND.")
@click.option("--nodes", type=click.IntRange(min=1), default=8, show_default=True, help="Nodes of the cluster.")
@click.option("--trainers", type=click.IntRange(min=0), default=3, show_default=True, help="Trainers.")
@click.option("--steps", type=click.IntRange(min=1), default=2000, show_default=True, help="Steps of each trainer.")
@click.option("--workload", type=click.Choice(list(WORKLOADS)), default="steady", help="The regular jobs.")
@click.option("--minutes", type=click.FloatRange(min=0), help="Run worlds of all sizes for so long, on all cores.")
@click.option("--replay", help="Show a history, side by side: a file of it, or itself.")
@click.option("--no-shrink", is_flag=True, help="Do not look for the shortest history that fails.")
@click.option(
    "--log",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for all events; with --minutes, of worlds that fail.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(
    seed: int | None,
    days: float,
    faults: tuple[str, ...],
    nodes: int,
    trainers: int,
    steps: int,
    workload: str,
    minutes: float | None,
    replay: str | None,
    no_shrink: bool,
    log: Path | None,
    as_json: bool,
) -> None:
    """Run the daemon and drivers in a simulated world, and look at every rule after every event."""
    if replay is not None:
        sys.exit(_show_again(replay, log))
    if minutes is not None:
        first = int.from_bytes(os.urandom(4), "big") if seed is None else seed
        found = _night(first, minutes, faults, log, shrinks=not no_shrink)
        click.echo(json.dumps(found) if as_json else table(found))
        sys.exit(bool(found["failures"]))
    if seed is None:
        raise click.UsageError("name a --seed, --minutes or a history to --replay")
    settings = WorldSettings(seed, 24.0 * days, nodes, trainers, steps, faults=faults, workload=workload)
    begun_s, cpu_s = monotonic(), process_time()
    result = run(settings)
    cpu_s = process_time() - cpu_s
    _write(log, result)
    shortest = _shortest(settings, result, shrinks=not no_shrink) if result.violation else {}
    shown = {
        "seed": seed,
        "commit": _commit(),
        "days": result.simulated_s / 86_400.0,
        "events": result.events,
        "events_per_cpu_s": result.events / cpu_s if cpu_s else 0.0,
        "took_s": monotonic() - begun_s,
        "cpu_s": cpu_s,
        "faults": dict.fromkeys(faults, 0) | Counter(result.struck),
        "violation": result.violation,
        "rule": result.rule,
        "shortest": shortest or None,
        "last": result.log[-_LAST:] if result.violation else [],
        "digest": result.digest,
    }
    if as_json:
        click.echo(json.dumps(shown, indent=2))
    else:
        for line in result.log[-_LAST:] if result.violation else ():
            click.echo(line)
        click.echo(
            f"seed {seed} at {shown['commit']}: {result.events} events in {shown['days']:.2f} days, "
            f"{len(result.struck)} faults: {result.violation or 'every rule held'}"
        )
        if result.violation:
            click.echo(_how_to_see(shortest))
    sys.exit(bool(result.violation))


def _shortest(settings: WorldSettings, result: WorldResult, *, shrinks: bool) -> dict[str, Any]:
    until_s = monotonic() + _SHRINK_S
    return history.to_json(shrunk(settings, result, lambda: monotonic() > until_s) if shrinks else settings)


def _how_to_see(shortest: Mapping[str, Any]) -> str:
    return f"python -m tools.year --replay '{json.dumps(shortest)}'"


def _show_again(given: str, log: Path | None) -> int:
    try:
        settings = history.of_json(given if given.lstrip().startswith("{") else Path(given).read_text("utf-8"))
    except (OSError, ValueError, TypeError) as error:
        raise click.UsageError(f"{given[:80]} is no history: {error}") from error
    result = run(settings)
    _write(log, result)
    width = shutil.get_terminal_size((_WIDTH, 24)).columns
    for line in history.side_by_side(result.log, width):
        click.echo(line)
    click.echo(f"seed {settings.seed} at {_commit()}: {result.violation or 'every rule held'}")
    return bool(result.violation)


def _write(path: Path | None, result: WorldResult) -> None:
    if path is not None:
        path.write_text("\n".join(result.log) + "\n", encoding="utf-8")


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout.strip()


# -- worlds of many seeds ---


def _night(first: int, minutes: float, kinds: tuple[str, ...], log: Path | None, *, shrinks: bool) -> dict[str, Any]:
    """Run the worlds of one seed after another on all cores until the time is over; returns what happened."""
    click.echo(f"seeds from {first}, at {_commit()}", err=True)
    worlds: list[dict[str, Any]] = []
    failures: list[dict[str, Any]] = []
    for world in _worlds(first, minutes, kinds, log, shrinks=shrinks):
        if world["violation"]:
            failures.append({name: world[name] for name in ("seed", "rule", "violation", "shortest", "repeats")})
            same = "" if world["repeats"] else "\nThe second time this world took another course."
            click.echo(f"seed {world['seed']}: {world['violation']}\n{_how_to_see(world['shortest'])}{same}", err=True)
        worlds.append(world)
    struck: Counter[str] = Counter()
    for world in worlds:
        struck.update(world["faults"])
    columns = ("seed", "shape", "days", "events", "cpu_s")
    return {
        "minutes": minutes,
        "seed": first,
        "commit": _commit(),
        "events": sum(world["events"] for world in worlds),
        "days": sum(world["days"] for world in worlds),
        "faults": {kind: struck[kind] for kind in kinds},
        "violations": dict(sorted(Counter(failure["rule"] for failure in failures).items())),
        "failures": failures,
        "columns": columns,
        "worlds": [[world[name] for name in columns] for world in sorted(worlds, key=lambda one: one["seed"])],
    }


def _worlds(
    first: int, minutes: float, kinds: tuple[str, ...], log: Path | None, *, shrinks: bool
) -> Iterator[dict[str, Any]]:
    until_s, seeds = monotonic() + 60.0 * minutes, count(first)
    running: dict[Future[dict[str, Any]], tuple[int, ProcessPoolExecutor]] = {}

    def begin(process: ProcessPoolExecutor) -> None:
        seed = next(seeds)
        running[process.submit(_one_world, seed, kinds, until_s, log, shrinks)] = seed, process

    for _ in range(os.cpu_count() or 1):
        begin(_process())
    while running:
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            seed, process = running.pop(future)
            try:
                yield future.result()
            except BrokenProcessPool:
                process = _process()
                yield _lost(seed, kinds)
            if monotonic() < until_s:
                begin(process)
            else:
                process.shutdown()


def _process() -> ProcessPoolExecutor:
    """Return a process of its own, so that whichever world ends it is known."""
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def _one_world(seed: int, kinds: tuple[str, ...], until_s: float, log: Path | None, shrinks: bool) -> dict[str, Any]:
    shape, settings = drawn_settings(seed, kinds)

    def enough() -> bool:
        faulthandler.dump_traceback_later(_HANG_S, exit=True)
        return monotonic() > until_s

    enough()
    cpu_s = process_time()
    result = run(settings, enough)
    cpu_s = process_time() - cpu_s
    faulthandler.cancel_dump_traceback_later()
    if not result.violation:
        return _told(seed, shape, result, cpu_s)
    _write(log and log.with_name(f"{log.name}.{seed}"), result)
    repeats = run(settings).digest == result.digest
    return _told(seed, shape, result, cpu_s, _shortest(settings, result, shrinks=shrinks), repeats=repeats)


def _lost(seed: int, kinds: tuple[str, ...]) -> dict[str, Any]:
    shape, settings = drawn_settings(seed, kinds)
    result = WorldResult(violation="hang: the process of the world ended, or nothing happened in it for long")
    return _told(seed, shape, result, 0.0, history.to_json(settings))


def _told(
    seed: int, shape: str, result: WorldResult, cpu_s: float, shortest: Any = None, *, repeats: bool = True
) -> dict[str, Any]:
    return {
        "seed": seed,
        "shape": shape,
        "days": round(result.simulated_s / 86_400.0, 4),
        "events": result.events,
        "cpu_s": round(cpu_s, 2),
        "faults": Counter(result.struck),
        "violation": result.violation,
        "rule": result.rule,
        "shortest": shortest or None,
        "repeats": repeats,
    }


def table(result: Mapping[str, Any]) -> str:
    """Return what happened in worlds of many seeds, in Markdown."""
    worlds = [dict(zip(result["columns"], row, strict=True)) for row in result["worlds"]]
    head = ["worlds", "number", "simulated days", "events", "events a CPU second"]
    rows = []
    for shape in sorted({world["shape"] for world in worlds}):
        those = [world for world in worlds if world["shape"] == shape]
        events, days, cpu_s = (sum(world[name] for world in those) for name in ("events", "days", "cpu_s"))
        rows.append([shape, len(those), f"{days:.1f}", f"{events:,}", f"{events / max(cpu_s, 0.01):,.0f}"])
    struck = ", ".join(f"{kind} {number:,}" for kind, number in result["faults"].items())
    broke = ", ".join(f"{rule}: {number}" for rule, number in result["violations"].items())
    return "\n\n".join(
        [
            markdown.table(head, rows),
            f"Faults: {struck or 'none'}.",
            f"Violations: {broke or 'none'}.",
        ]
    )


EVIDENCE = {
    name: Benchmark(
        ("tools.year", "--minutes", str(_EVIDENCE_MINUTES), "--seed", str(seed)),
        float(_EVIDENCE_MINUTES),
        {"table": table},
    )
    for name, seed in _EVIDENCE_SEEDS.items()
}


if __name__ == "__main__":
    main()
