"""`bft size learn`: records the resources that a finished job used, for later jobs of the same step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bftd import config_file
from bftd.base.errors import BftError, UsageError
from bftd.base.format import size
from bftd.cli import common, options
from bftd.cli.progress import progress_bars
from bftd.cli.size.shared import inventory, size_options

if TYPE_CHECKING:
    from sizing.files.past_runs import Ran


@click.command()
@click.argument("words", nargs=-1, metavar="MODULE.py:make_step REPORT")
@click.option("--dcgm", multiple=True, metavar="FILE", help="Output of dcgmi stats -v -j JOB, of each of its nodes.")
@click.option("--gpu", default="", metavar="TYPE", help="The type of its GPUs, where its nodes are no longer there.")
@size_options.python
@size_options.timeout()
@click.option("--publish", is_flag=True, help="Instead: keep the runs in these files of users for all users.")
@options.as_json
def learn(
    words: tuple[str, ...],
    dcgm: tuple[str, ...],
    gpu: str,
    python: str,
    timeout_s: float,
    publish: bool,
    as_json: bool,
) -> None:
    """Keep what a job used, so that fit, choose and --auto-gpus go by it.

    REPORT is what its script has written of it (docs/howto/size.md); Slurm's accounting and DCGM's statistics tell
    what else it used. It counts for steps that are traced as this one is, on as many GPUs of the same type.
    """
    if publish:
        if dcgm or gpu:
            raise UsageError("--publish takes files of runs alone, without --dcgm and --gpu")
        _publish(words, as_json)
        return
    import sizing
    from sizing.files import past_runs

    if len(words) != 2:
        raise UsageError("name a training step and the report of a job: bft size learn train.py:make_step report.json")
    step, file = words
    with progress_bars() as progress:
        used = sizing.learn(
            step,
            file,
            dcgm=dcgm,
            gpu=gpu,
            python=python,
            timeout_s=timeout_s,
            site=inventory.site(),
            progress=progress,
        )
    if as_json:
        common.echo_json({**asdict(used), "file": str(past_runs.usual_path())})
    else:
        click.echo(f"{_words(used)}; kept in {past_runs.usual_path()}")


def _publish(files: Sequence[str], as_json: bool) -> None:
    """Add users' runs to the centre's file: their lines are parsed and checked, and no user code is run."""
    from sizing.files import past_runs

    if not files:
        raise UsageError("name files of users: bft size learn --publish /home/*/.cache/bft/ran.jsonl")
    target = _published()
    common.refuse_unwritable(target)
    runs: dict[str, Ran] = {}
    unread = 0
    for file in (target, *map(Path, files)):
        found, note = past_runs.read(file)
        if note and file == target:
            raise BftError(f"{note}; mend or remove it, so that nothing in it is lost")
        if file != target and not file.exists():
            note = f"{file}: no such file"
        if note:
            click.echo(note, err=True)
            unread += 1
        runs |= {each.job: each for each in found}
    text = "\n".join(map(past_runs.line_of, runs.values()))
    if len(text) > past_runs.MOST_BYTES:
        raise BftError(
            f"{target} would be larger than {past_runs.MOST_BYTES >> 20} MiB: remove old lines, or publish fewer"
        )
    common.write(target, text)
    if target.stat().st_mode & 0o777 != 0o644:
        try:
            target.chmod(0o644)
        except OSError as error:
            raise BftError(
                f"{target} is written, but not all users can read it ({error.strerror}): chmod 644 it"
            ) from None
    if as_json:
        common.echo_json({"runs": len(runs), "file": str(target)})
    else:
        click.echo(f"runs in {target}: {len(runs)}")
    if unread:
        raise BftError(f"files that were not read whole: {unread}")


def _published() -> Path:
    """Return the path of the centre's file of runs, next to its configuration."""
    from sizing.files import past_runs

    return config_file.find(None).with_name(past_runs.NAME)


def _words(used: Ran) -> str:
    parts = [
        f"{used.step_s:.3g} s a step",
        f"{size(used.peak_bytes)} of tensors" if used.peak_bytes is not None else "",
        f"{size(used.in_use_bytes)} in use of a GPU" if used.in_use_bytes is not None else "",
        f"{size(used.host_bytes)} of a node's memory at most" if used.host_bytes is not None else "",
    ]
    where = f"{used.gpus} x {used.gpu_type}, {used.batch} samples on each"
    return f"{used.step} on {where}: {', '.join(filter(None, parts))}"
