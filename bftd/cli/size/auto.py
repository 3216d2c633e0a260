"""`bft size auto`: the command that the SPANK plug-in runs for `sbatch --auto-gpus`, as the user."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from bftd.base.errors import BftError, UsageError

# Options of `bft size fit` that are allowed in the value. If it gives a model by its sizes, all other words are sizes.
_OPTIONS = ("global-batch", "partition", "gpu", "max-gpus", "by")
_OF_A_STEP = ("precision", "python")
_STEP = re.compile(r"[^,]+\.py:[A-Za-z_]\w*")
_EXAMPLE = "for example --auto-gpus=step.py:make_step,global-batch=256"

# Limits, as Slurm stores the plans and slurmctld reads them while it holds its locks.
_PLANS_MOST = 40
_BYTES_MOST = 6000
_WHY = re.compile(r"[^ -:<-~]")

# sbatch option in a plan's lines -> field of the answer.
_FIELDS = {
    "partition": "partition",
    "nodes": "nodes",
    "ntasks-per-node": "tasks",
    "gres": "gres",
    "gpus-per-node": "gres",
    "cpus-per-task": "cpus",
    "mem": "mem",
    "constraint": "features",
}
_LINE = re.compile(r"#SBATCH\s+--([a-z-]+)=(\S+)")
_MEGABYTES = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024}


@click.command()
@click.argument("value")
def auto(value: str) -> None:
    """Answer `sbatch --auto-gpus=VALUE`: print the plans that fit, best first, in the form that bftd_gpus.lua reads."""
    reply = answer(_plans(fit_words(value)))
    if not reply:
        raise BftError("no plan can be written as options of a job; see `bft size fit`")
    click.echo(reply)


def fit_words(value: str) -> list[str]:
    """Return the `bft size fit` command line that a value of --auto-gpus stands for; raises UsageError."""
    first, *rest = value.split(",")
    is_step = _STEP.fullmatch(first) is not None
    known = (*_OPTIONS, *(_OF_A_STEP if is_step else ()))
    sizes, options = [first], {}
    for word in rest:
        key, equals, text = word.partition("=")
        if equals and key in known:
            options[key] = text
        elif is_step:
            raise UsageError(f"{word!r} is no option of --auto-gpus; known: {', '.join(f'{name}=' for name in known)}")
        else:
            sizes.append(word)
    if not first or (".py" in first and not is_step):
        raise UsageError(f"{first!r} names no step and no model, {_EXAMPLE}")
    if "global-batch" not in options:
        raise UsageError(f"say how many samples make a step on all GPUs together, {_EXAMPLE}")
    model = [first] if is_step else ["--config", ",".join(sizes)]
    return [*model, *(f"--{key}={text}" for key, text in options.items()), "--no-start", "--json"]


def answer(plans: Iterable[Mapping[str, Any]]) -> str:
    """Return the plans that fit, in order, one for each partition, type, and number of nodes and GPUs.

    The answer is limited in plans and bytes. If there are too many, each partition and type comes first, then its
    further numbers of nodes, then further numbers of GPUs: the user may have asked for a partition or a number of nodes
    that is far down the list.
    """
    found: dict[tuple[str, str, int, int], str] = {}
    for plan in plans:
        key = (plan["partition"], plan["gpu_type"], plan["nodes"], plan["gpus"])
        if plan["fits"] and key not in found and (text := _one(plan)) is not None:
            found[key] = text
    kept: set[tuple[str, str, int, int]] = set()
    length = 0
    for alike in (2, 3, 4):
        seen = {key[:alike] for key in kept}
        for key, text in found.items():
            fits = len(kept) < _PLANS_MOST and length + len(text) + 1 <= _BYTES_MOST
            if fits and key[:alike] not in seen:
                seen.add(key[:alike])
                kept.add(key)
                length += len(text) + 1
    return ";".join(text for key, text in found.items() if key in kept)


def _one(plan: Mapping[str, Any]) -> str | None:
    """Return one plan as fields separated by spaces; None if its lines lack something that a job must state."""
    fields = {"partition": str(plan["partition"]), "nodes": str(plan["nodes"])}
    for line in plan["sbatch"]:
        if (found := _LINE.match(line)) and found[1] in _FIELDS:
            fields[_FIELDS[found[1]]] = found[2]
    if "gres" not in fields or not plan["nodes"] or plan["gpus"] % plan["nodes"]:
        return None
    fields.setdefault("tasks", str(plan["gpus"] // plan["nodes"]))
    if not fields["gres"].startswith("gpu:"):
        fields["gres"] = f"gpu:{fields['gres']}"
    if "mem" in fields:
        fields["mem"] = str(_megabytes(fields["mem"]))
    gib = 2**30
    spread = " x ".join(f"{name} {plan[name]}" for name in ("dp", "tp", "fsdp") if name == "dp" or plan[name] > 1)
    why = f"{spread}, {plan['peak_bytes'] / gib:.1f} of {plan['gpu_bytes'] / gib:.1f} GiB a GPU, {plan['origin']}"
    return " ".join((*(f"{name}={text}" for name, text in fields.items()), f"why={_WHY.sub('?', why)}"))


def _megabytes(text: str) -> int:
    """Convert a value of Slurm's --mem to megabytes."""
    found = re.fullmatch(r"(\d+)([KMGT]?)B?", text)
    if not found:
        raise BftError(f"--mem={text} in a plan is not understood: tell your administrators")
    return int(int(found[1]) * _MEGABYTES[found[2]])


def _plans(words: Sequence[str]) -> list[dict[str, Any]]:
    """Return the plans of `bft size fit`; if none fits, its error says by how much and what would help."""
    from bftd.cli.size.fit import fit

    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        fit.main(list(words), prog_name="bft size fit", standalone_mode=False)
    plans: list[dict[str, Any]] = json.loads(output.getvalue())["plans"]
    return plans
