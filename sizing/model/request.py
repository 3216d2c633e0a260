"""A request for a model: a training step to trace, a configuration, or both."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sizing.base.errors import UsageError
from sizing.files.text import text_of
from sizing.model import config, huggingface
from sizing.model.config import ModelConfig, Precision

_FILE = re.compile(r"(?P<path>.+?\.json)(?::(?P<options>.*))?$")
_BATCH = re.compile(r"(?:^|[:,])\s*b\s*=")
_OWN_PRECISION = re.compile(r"(?:^|[:,])\s*precision\s*=")
_PRECISIONS: Mapping[str, Precision] = {"fp32": "fp32", "tf32": "tf32", "fp16": "fp16-amp", "bf16": "bf16"}
"""The precisions of products that data sheets have, and that of a configuration: its weights stay in fp32."""
_MOST_BATCH = 10**9


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A model as its user names it; `micro_batch` is the b of its configuration, None if not given.

    `notes` are sentences on what was read from a file.
    """

    step: str | None
    model: ModelConfig | None
    micro_batch: int | None
    notes: tuple[str, ...] = ()


def refuse_batch(global_batch: int) -> None:
    """Raise UsageError for a global batch outside the plausible range."""
    if not 1 <= global_batch <= _MOST_BATCH:
        raise UsageError(f"--global-batch {global_batch}: at least 1, and at most {_MOST_BATCH}")


def refuse_precision(name: str) -> None:
    """Raise UsageError for a precision that no data sheet has; "" stands for the step's own."""
    if name and name not in _PRECISIONS:
        raise UsageError(f"--precision {name}: {', '.join(_PRECISIONS)}")


def asked(step: str | None, text: str | None, precision: str = "") -> ModelRequest:
    """Parse the names of a step and of a configuration; raises UsageError if there are none or they are invalid.

    `precision` is that of the products, "" for the model's own.
    """
    refuse_precision(precision)
    if step is None and text is None:
        raise UsageError(
            "name a training step (MODULE.py:make_step), or give --config gpt:h=1024,l=24,a=16,s=1024,V=50257"
        )
    if step is not None and not re.fullmatch(r".+\.py:[A-Za-z_]\w*", step):
        example = f"{step}:make_step" if step.endswith(".py") else "train.py:make_step"
        raise UsageError(
            f"{step}: name a file and the function in it that makes a training step, for example {example} "
            "(`bft size fit --help` shows one)"
        )
    if text is None:
        return ModelRequest(step, None, None)
    model = _model(text)
    notes: tuple[str, ...] = ()
    named = _OWN_PRECISION.search(text) is not None
    if named and precision and model.precision != _PRECISIONS[precision]:
        raise UsageError(
            f"--precision {precision} and precision={model.precision} of --config differ: give one of them"
        )
    if precision:
        model = replace(model, precision=_PRECISIONS[precision])
    elif not named and (file := _FILE.match(text)):
        name = file["path"]
        notes = (f"precision {model.precision}, by the dtype in {name}; {name}:precision= sets another",)
    return ModelRequest(step, model, model.batch if _BATCH.search(text) else None, notes)


def _model(text: str) -> ModelConfig:
    found = _FILE.match(text)
    if found is None:
        return config.parse(text)
    path = found["path"]
    text = text_of(path)
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise UsageError(f"{path}: no JSON object; name the config.json of a model as transformers writes it")
    model = huggingface.read(fields, name=path)
    return config.with_options(model, found["options"]) if found["options"] else model
