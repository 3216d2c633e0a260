"""`bft size auto`: what the SPANK plug-in runs for `sbatch --auto-gpus`, as the user."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from bftd.errors import BftError, UsageError

# Options of `bft size fit` among the words of the value; every other word belongs to the model's sizes.
_OPTIONS = ("global-batch", "max-gpus", "inventory", "python")
_STEP = re.compile(r"[^,]+\.py:[A-Za-z_]\w*")
_EXAMPLE = "for example --auto-gpus=step.py:make_step,global-batch=256"

# What Slurm carries, and what slurmctld has to read while it holds its locks.
_PLANS_MOST = 40
_BYTES_MOST = 6000
_WHY = re.compile(r"[^ -:<-~]")

# An option of sbatch's in a plan's lines, and the field of the answer that says it.
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
    plans = _plans(fit_words(value))
    if not any(plan["fits"] for plan in plans):
        raise BftError("no GPUs of this centre hold the model; `bft size fit` says by how much, and what would help")
    click.echo(answer(plans))


def fit_words(value: str) -> list[str]:
    """The command line of `bft size fit` that a value of --auto-gpus stands for; raises UsageError."""
    words, options = [], {}
    for word in value.split(","):
        key, equals, text = word.partition("=")
        if equals and key in _OPTIONS:
            options[key] = text
        else:
            words.append(word)
    what = ",".join(words)
    if "global-batch" not in options:
        raise UsageError(f"say how many samples make a step on all GPUs together, {_EXAMPLE}")
    if not what or (".py" in words[0] and not _STEP.fullmatch(what)):
        raise UsageError(f"{what!r} names no step and no model, or has words that are no options, {_EXAMPLE}")
    chosen = [what] if _STEP.fullmatch(what) else ["--config", what]
    return [*chosen, *(f"--{key}={text}" for key, text in options.items()), "--json"]


def answer(plans: Iterable[Mapping[str, Any]]) -> str:
    """The plans that fit, in their order, one of each partition, type and number of GPUs; bounded in all."""
    seen, said, length = set(), [], 0
    for plan in plans:
        text = _one(plan) if plan["fits"] else None
        key = (plan["partition"], plan["gpu_type"], plan["gpus"], plan["nodes"])
        if text is None or key in seen or length + len(text) + 1 > _BYTES_MOST:
            continue
        seen.add(key)
        said.append(text)
        length += len(text) + 1
        if len(said) == _PLANS_MOST:
            break
    return ";".join(said)


def _one(plan: Mapping[str, Any]) -> str | None:
    """One plan as fields with a space between them; None where its lines lack what a job has to say."""
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
    why = f"{plan['peak_bytes'] / gib:.1f} of {plan['gpu_bytes'] / gib:.1f} GiB a GPU, {plan['origin']}"
    return " ".join((*(f"{name}={text}" for name, text in fields.items()), f"why={_WHY.sub('?', why)}"))


def _megabytes(text: str) -> int:
    """Slurm's --mem in megabytes."""
    found = re.fullmatch(r"(\d+)([KMGT]?)B?", text)
    if not found:
        raise BftError(f"--mem={text} in a plan is not understood: tell your administrators")
    return int(int(found[1]) * _MEGABYTES[found[2]])


def _plans(words: Sequence[str]) -> list[dict[str, Any]]:
    """What `bft size fit` says, with its own errors."""
    from bftd.cli.size_fit import fit

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        fit.main(list(words), prog_name="bft size fit", standalone_mode=False)
    plans: list[dict[str, Any]] = json.loads(said.getvalue())["plans"]
    return plans
