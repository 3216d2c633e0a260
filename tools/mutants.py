"""Test the simulated world: put known faults into the product, one at a time, and see whether a rule breaks.

    python -m tools.mutants [--minutes M] [--json] [NAME...]

tools/mutants.toml has the faults. Each is put into a copy of the source, and worlds of one seed after another run there
until a rule breaks or the minutes are over. The unchanged source then goes through the same worlds: none may break.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random
from time import monotonic, process_time  # the world sets those of the module `time`
from typing import Any

import click

from benchmarks import markdown
from benchmarks.evidence.model import Benchmark
from bftd.simulation.world.faults.kinds import KINDS
from bftd.simulation.world.world import WorldSettings, run

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
MUTANTS = ROOT / "tools" / "mutants.toml"

_MINUTES = 10.0
_SOURCE = ("benchmarks", "bftd", "elastic", "milp", "sizing", "slurm_plugin", "tools")
_FEW = (("script",), ("worker",), ("script", "worker"), ("daemon",), ("daemon", "driver"), ("slurmctld", "driver"))
"""Kinds beside which rules hold that others would suspend."""

_OF_CHECKPOINTS = ("checkpoint", "disk")

_LEAST = 30
"""So many mutants, or all that are asked for, have to be found."""

_HANG_S = 60.0
_SEEK = "import sys; from tools.mutants import seek; seek(float(sys.argv[1]), int(sys.argv[2]))"


class OutOfDateError(Exception):
    """A mutant changes what is not in the source any more."""


@dataclass(frozen=True)
class Mutant:
    """A fault: `edits` are (path, before, after), and `rule` is the one that should break."""

    name: str
    what: str
    rule: str
    edits: tuple[tuple[str, str, str], ...]

    def apply(self, root: Path) -> None:
        """Put the fault into a copy of the source; raises OutOfDateError."""
        for path, before, after in self.edits:
            text = (root / path).read_text(encoding="utf-8")
            if (found := text.count(before)) != 1:
                raise OutOfDateError(f"{self.name}: {path} has {before!r} {found} times")
            (root / path).write_text(text.replace(before, after), encoding="utf-8")


def mutants() -> dict[str, Mutant]:
    """Return all mutants by name."""
    found = {}
    for name, table in tomllib.loads(MUTANTS.read_text(encoding="utf-8")).items():
        edits = tuple((edit["path"], edit["before"], edit["after"]) for edit in table.get("edits", [table]))
        found[name] = Mutant(name, table["what"], table["rule"], edits)
    return found


def settings_of(seed: int) -> WorldSettings:
    """Return the world of a seed: a small one of some minutes, of five one without a fault and one with all kinds."""
    random = Random(f"{seed} mutants")
    kinds = ((), random.choice(_FEW), _OF_CHECKPOINTS, tuple(random.sample(list(KINDS), 4)), tuple(KINDS))[seed % 5]
    return WorldSettings(
        seed,
        hours=random.choice((0.05, 0.1, 0.2)),
        nodes=random.randint(2, 5),
        trainers=random.randint(1, 3),
        steps=random.choice((20, 40, 80)),
        faults=kinds,
        apart_s=random.choice((20.0, 60.0, 180.0)),
    )


def seek(within_s: float, last_seed: int) -> None:
    """Run worlds until a rule breaks, the time is over, or a seed is reached (0: none); prints what was found."""
    begun_s, events = monotonic(), 0
    found: dict[str, Any] = {"violation": "", "rule": "", "seed": None}

    def enough() -> bool:
        return monotonic() - begun_s > within_s

    for seed in count(1):
        if enough() or (last_seed and seed > last_seed):
            seed -= 1
            break
        result = run(settings_of(seed), enough)
        events += result.events
        if result.violation:
            found = {"violation": result.violation, "rule": result.rule, "seed": seed}
            break
    took = {"worlds": seed, "events": events, "took_s": monotonic() - begun_s, "cpu_s": process_time()}
    print(json.dumps(found | took))


@contextmanager
def _copy() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bft-mutant-") as folder:
        for name in _SOURCE:
            ignored = shutil.ignore_patterns("__pycache__", "results")
            shutil.copytree(ROOT / name, Path(folder) / name, ignore=ignored, symlinks=True)
        yield Path(folder)


def sought(mutant: Mutant | None, minutes: float, last_seed: int = 0) -> dict[str, Any]:
    """Run worlds with a mutant, or with the unchanged source; returns what was found. Raises OutOfDateError."""
    with _copy() as folder:
        if mutant is not None:
            mutant.apply(folder)
        begun_s = monotonic()
        command = [sys.executable, "-c", _SEEK, str(60.0 * minutes), str(last_seed)]
        environ = {**os.environ, "PYTHONPATH": str(folder), "PYTHONSAFEPATH": "", "PYTHONHASHSEED": "0"}
        try:
            done = subprocess.run(
                command, cwd=folder, env=environ, text=True, capture_output=True, timeout=60.0 * minutes + _HANG_S
            )
        except subprocess.TimeoutExpired:
            return _found("a world hangs", "hang", monotonic() - begun_s)
        try:
            return dict(json.loads(done.stdout))
        except ValueError:
            last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
            return _found(f"a world ends its process with {done.returncode}: {last}", "crash", monotonic() - begun_s)


def _found(violation: str, rule: str, took_s: float) -> dict[str, Any]:
    return {"violation": violation, "rule": rule, "seed": None, "worlds": None, "events": 0, "took_s": took_s}


def table(result: Mapping[str, Any]) -> str:
    """Return the table of a result."""
    rows = [
        (
            each["name"],
            each["what"],
            f"seed {each['seed']}" if each["seed"] else "" if each["violation"] else "not found",
            each["rule"],
            f"{each['took_s']:.0f}",
        )
        for each in result["mutants"]
    ]
    return markdown.table(("mutant", "fault", "world", "rule that breaks", "s"), rows)


@click.command()
@click.argument("names", nargs=-1)
@click.option("--minutes", type=float, default=_MINUTES, show_default=True, help="The longest search for one mutant.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(names: Sequence[str], minutes: float, as_json: bool) -> None:
    """Put known faults into the product, one at a time, and see whether a rule of the simulated world breaks."""
    known = mutants()
    if unknown := [name for name in names if name not in known]:
        raise click.UsageError(f"no mutant is called {unknown[0]}: there are {', '.join(known)}")
    chosen = [known[name] for name in names or known]
    found = []
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        for mutant, result in zip(chosen, threads.map(lambda each: sought(each, minutes), chosen), strict=True):
            found.append({"name": mutant.name, "what": mutant.what, "expected": mutant.rule, **result})
            words = result["violation"] or f"not found in {result['worlds']} worlds"
            click.echo(f"{mutant.name}: {words} ({result['took_s']:.0f} s, seed {result['seed']})", err=as_json)
    last_seed = max((each["seed"] or 0 for each in found), default=0)
    control = sought(None, 60.0, last_seed)
    count_ = sum(bool(each["violation"]) for each in found)
    if as_json:
        result = {"asked": len(found), "found": count_, "minutes": minutes, "control": control, "mutants": found}
        click.echo(json.dumps(result, indent=2))
    else:
        words = control["violation"] or "no rule breaks"
        click.echo(f"{count_} of {len(found)} found; in the unchanged source, {control['worlds']} worlds: {words}")
    sys.exit(count_ < min(_LEAST, len(found)) or bool(control["violation"]))


EVIDENCE = {"mutants": Benchmark(("tools.mutants",), 60.0, {"table": table})}


if __name__ == "__main__":
    main()
