"""A request for a model: a training step to trace, a configuration, or both."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from sizing.base.errors import UsageError
from sizing.files.site import text_of
from sizing.model import config, huggingface
from sizing.model.config import ModelConfig

_FILE = re.compile(r"(?P<path>.+?\.json)(?::(?P<options>.*))?$")
_BATCH = re.compile(r"(?:^|[:,])\s*b\s*=")
_MOST_BATCH = 10**9


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A model as its user names it; `micro_batch` is the b of its configuration, None if not given."""

    step: str | None
    model: ModelConfig | None
    micro_batch: int | None


def refuse_batch(global_batch: int) -> None:
    """Raise UsageError for a global batch outside the plausible range."""
    if not 1 <= global_batch <= _MOST_BATCH:
        raise UsageError(f"--global-batch {global_batch}: at least 1, and at most {_MOST_BATCH}")


def asked(step: str | None, text: str | None) -> ModelRequest:
    """Parse the names of a step and of a configuration; raises UsageError if there are none or they are invalid."""
    if step is None and text is None:
        raise UsageError(
            "name a training step (MODULE.py:make_step), or give --config gpt:h=1024,l=24,a=16,s=1024,V=50257"
        )
    if step is not None and not re.fullmatch(r".+\.py:[A-Za-z_]\w*", step):
        raise UsageError(f"{step}: name a file and its function, for example train.py:make_step")
    model = None if text is None else _model(text)
    fixed = model.batch if model is not None and _BATCH.search(text or "") else None
    return ModelRequest(step, model, fixed)


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
