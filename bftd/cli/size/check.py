"""`bft size check`: estimates of steps against measurements on a GPU, and the correction that the site keeps."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bftd.base.errors import BftError, UsageError
from bftd.base.format import counted, size
from bftd.cli import common, options
from bftd.cli.progress import progress_bar
from bftd.cli.size.shared import allocation, inventory, size_options

if TYPE_CHECKING:
    from sizing.child.stepping import GpuStep
    from sizing.inventory.gpus import GpuType
    from sizing.model.trace import StepTrace
    from sizing.step_time.checking import ComparedStep

_CPUS = 2  # one to start operators, one for the rest of the process
_MEMORY = "16G"
_LEAST = 5  # the fewest steps for a correction
_MINUTES = 30  # three times the duration of all steps on a slow GPU


@click.command()
@click.option("--partition", "-p", default="", metavar="P", help="Run on one GPU of this partition, through srun.")
@click.option("--gpu", default="", metavar="TYPE", help="The site's name of the type; default: as its driver says.")
@click.option("--into", metavar="FILE", help="Keep the correction in this file of GPUs: /etc/bftd/gpus.json.")
@click.option("--python", default="", metavar="P", help="The Python to run steps with; it must have torch.")
@size_options.timeout(180.0, "Of each step; default 180 s.")
@options.as_json
def check(partition: str, gpu: str, into: str | None, python: str, timeout_s: float, as_json: bool) -> None:
    """Compare estimates of steps with a GPU; with --into keep the correction.

    Steps of kinds that GPUs run every day are traced, and run for some seconds on one GPU that nothing else uses. The
    memory that they took stands beside the trace with its guard band, their time beside the assumed one. This takes
    some minutes for each type of GPU; with --into the result corrects the plans of all users.
    """
    from sizing.memory.peak import guarded_bytes
    from sizing.step_time import checking

    own, file = inventory.own_types(), None if into is None else _file(into)
    options: list[str] = []
    if partition:
        gpu, options = _gpu_of(partition, gpu)
    elif gpu:
        checking.named_type(gpu, own)
    traces = _traces(python, timeout_s)
    limits = {name: guarded_bytes(trace.peak_bytes) for name, trace in traces.items()}
    found = (
        _on_partition(partition, options, limits, python, timeout_s)
        if partition
        else checking.measured(limits, python, timeout_s, _print_measured)
    )
    known: GpuType | None = None
    steps: dict[str, GpuStep] = {}
    failed: dict[str, str] = {}
    apart: dict[str, str] = {}
    for name, step in found:
        if step is None:
            apart[name] = "it is larger than this GPU"
        elif isinstance(step, str):
            failed[name] = step
        else:
            known = known or checking.type_of(step.device, own, gpu)  # fail here, before minutes of work
            steps[name] = step
    if known is None:
        raise BftError(f"no step ran: {next(iter({**failed, **apart}.values()), 'there was none')}")
    odd = [name for name, trace in traces.items() if not checking.has_units(trace, known)]
    apart |= dict.fromkeys(odd, f"{known.name} has no units for its products")
    failed = {name: why for name, why in failed.items() if name not in odd}
    rows = [checking.ComparedStep(name, traces[name], step, known) for name, step in steps.items() if name not in odd]
    if not rows or (len(rows) < _LEAST and not failed):
        raise BftError(
            f"this GPU can run {counted(len(rows), 'step')}, and a correction needs {_LEAST}: nothing was kept"
        )
    corrected = checking.corrected(known, rows)
    if as_json:
        common.echo_json(_json(corrected, rows, {**failed, **apart}))
    else:
        common.echo(_lines(corrected, rows))
        common.echo(f"{name} does not count: {why}" for name, why in apart.items())
    for name, why in failed.items():
        raise BftError(f"{name} did not run, and nothing was kept: {why}")
    if file is not None:
        common.write(file, checking.kept_in(_text(file), corrected, str(file)).rstrip("\n"))
        click.echo(f"{corrected.name} is corrected in {file}", err=True)


def _file(into: str) -> Path:
    """Return the path of the file of GPUs to correct, which may not exist yet; raises UsageError."""
    from sizing.inventory.file import parse

    path = Path(into)
    common.refuse_unwritable(path)
    if into == "-" or (path.exists() and not path.is_file()):
        raise UsageError(f"--into {into}: name a file")
    if text := _text(path):
        parse(text, name=into)
    return path


def _text(file: Path) -> str:
    from sizing.files.text import text_of

    return text_of(str(file)) if file.exists() else ""


def on_node() -> None:
    """Run the steps on this node's GPU and print their measurements, for a bft command elsewhere."""
    from sizing.base.errors import SizingError
    from sizing.child.stepping import GpuStep
    from sizing.step_time import checking

    python, timeout_s, limits = sys.argv[1:]
    try:
        found = dict(checking.measured(json.loads(limits), python, float(timeout_s), _print_measured))
    except SizingError as error:
        sys.exit(f"bft: {error}")
    steps = {name: _step_json(step) if isinstance(step, GpuStep) else step for name, step in found.items()}
    common.echo_json({"steps": steps})


def _step_json(step: GpuStep) -> dict[str, Any]:
    took = step.step_s
    return {**asdict(step), "step_s": (took.value, took.low, took.high)}


def _print_measured(name: str) -> None:
    click.echo(f"running {name}", err=True)


def _traces(python: str, timeout_s: float) -> Mapping[str, StepTrace]:
    from sizing.base.parallel import Parallel
    from sizing.child import tracing
    from sizing.child.threads import side_by_side
    from sizing.step_time.checking import BATCHES, STEPS

    done = 0

    def one(name: str) -> StepTrace:
        nonlocal done
        trace = tracing.trace(f"{STEPS}:{name}", BATCHES[name], Parallel(), python=python, timeout_s=timeout_s)
        done += 1
        return trace

    jobs: list[Callable[[], StepTrace]] = [lambda name=name: one(name) for name in BATCHES]  # type: ignore[misc]
    with progress_bar("tracing steps", lines=True) as report:
        return dict(zip(BATCHES, side_by_side(jobs, lambda: report(done / len(jobs))), strict=True))


def _gpu_of(partition: str, gpu: str) -> tuple[str, list[str]]:
    """Return the site's name for a partition's type of GPU, and the options that ask Slurm for one."""
    from sizing.inventory.pools import pools

    there = [each for each in pools(inventory.found()) if each.partition == partition]
    there = [each for each in there if gpu in ("", each.gpu.name, each.gres_type)]
    if not there:
        raise UsageError(f"partition {partition} has no such GPU: bft size inventory shows what there is")
    names = sorted({each.gpu.name for each in there})
    if len(names) > 1:
        raise UsageError(f"partition {partition} has GPUs of {', '.join(names)}: name one with --gpu")
    (pool, *_) = there
    if pool.mixed:
        raise UsageError(
            f"a job may get {pool.mixed[0]} instead of {pool.gpu.name} in {partition}: run this on a node that has it"
        )
    minutes = _MINUTES if pool.max_time_s is None else min(_MINUTES, int(pool.max_time_s // 60))
    gres = f"gpu:{pool.gres_type}:1" if pool.gres_type else "gpu:1"
    return names[0], [f"--gres={gres}", f"--cpus-per-task={_CPUS}", f"--mem={_MEMORY}", f"--time={max(1, minutes)}"]


def _on_partition(
    partition: str, options: Sequence[str], limits: Mapping[str, int], python: str, timeout_s: float
) -> Iterator[tuple[str, GpuStep | str | None]]:
    from sizing.child.stepping import gpu_step
    from sizing.model.reply import word

    words = [python, str(timeout_s), json.dumps(limits)]
    answer = allocation.answered(partition, ["--job-name=bft-check", *options], ("size.check", "on_node"), words)
    try:
        if answer["steps"].keys() != limits.keys():
            raise ValueError(f"steps {', '.join(answer['steps'])}")
        for name, result in answer["steps"].items():
            if result is None or isinstance(result, str):
                yield name, result and word(result, 1000)
            else:
                yield name, gpu_step(result)
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise BftError(f"the job's answer is no step ({error}): is the same bft on the nodes?") from None


def _json(gpu: GpuType, rows: Sequence[ComparedStep], failed: Mapping[str, str]) -> dict[str, Any]:
    return {
        "gpu": gpu.name,
        "device": rows[0].real.device,
        "torch": rows[0].real.torch,
        "memory_bytes": gpu.memory_bytes,
        "checked": {kind: asdict(each) for kind, each in gpu.checked.items()},
        "rows": [row.to_json() for row in rows],
        "failed": dict(failed),
    }


def _lines(gpu: GpuType, rows: Sequence[ComparedStep]) -> Iterator[str]:
    from bftd.base.tables import Column
    from sizing.memory.peak import guarded_bytes
    from sizing.step_time.checking import within

    columns = [
        Column("STEP"),
        Column("BATCH", right=True, rank=2),
        Column("TRACED", right=True),
        Column("ALLOCATED", right=True, rank=3),
        Column("RESERVED", right=True),
        Column("IN USE", right=True),
        Column("WITH GUARD", right=True),
        Column("ENOUGH"),
        Column("TIME", right=True),
        Column("ASSUMED", right=True),
        Column("RATIO", right=True),
        Column("BOUND BY", rank=1),
    ]
    cells = []
    for row in rows:
        real, expected = row.real, row.expected_s
        memory = (row.trace.peak_bytes, real.allocated_bytes, real.reserved_bytes, real.in_use_bytes)
        expected_text = f"{expected.value:.3g} s ({expected.low:.2g}-{expected.high:.2g})"
        shown = (
            *map(size, memory),
            size(guarded_bytes(row.trace.peak_bytes)),
            "yes" if real.within_guard else "no",
        )
        times = (f"{real.step_s.value:.3g} s", expected_text, f"{row.ratio:.2f}", row.kind)
        cells.append((row.name, str(real.batch), *shown, *times))
    yield f"{gpu.name}: {rows[0].real.device}, torch {rows[0].real.torch}"
    yield from common.table(columns, cells)
    enough = sum(row.real.within_guard for row in rows)
    yield f"memory: the guard band was enough for {enough} of {len(rows)}; {size(gpu.memory_bytes)} can be counted on"
    inside = sum(within(row.real, row.expected_s) for row in rows)
    yield f"time: {inside} of {len(rows)} steps took as long as assumed; measured over assumed time by what bounds it:"
    yield from common.table(
        [Column("BOUND BY"), Column("STEPS", right=True), Column("MEDIAN", right=True), Column("RANGE")],
        [
            (kind, str(each.steps), f"{each.value:.2f}", f"{each.low:.2f}-{each.high:.2f}")
            for kind, each in gpu.checked.items()
        ],
    )
