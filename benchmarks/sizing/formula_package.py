"""A training step of a model that the transformers package makes of a config.json: what the formula is held against.

Run by the tracer, which gives the case in the environment variable SIZING_PACKAGE_CASE.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import torch
import transformers


def make_step(batch: int) -> Callable[[], None]:
    """The step of a case of `benchmarks.sizing.formula.PACKAGE`."""
    case = json.loads(os.environ["SIZING_PACKAGE_CASE"])
    fields = transformers.AutoConfig.for_model(case["kind"], **case["fields"])
    fields._attn_implementation = "eager" if case["attention"] == "math" else "sdpa"
    fields.use_cache = False
    auto = transformers.AutoModelForMaskedLM if case["kind"] == "bert" else transformers.AutoModelForCausalLM
    precision = case["precision"]
    model = auto.from_config(fields).to("cuda", torch.bfloat16 if precision == "bf16-pure" else torch.float32).train()
    if case["recompute"] == "full":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    texts = torch.randint(0, fields.vocab_size, (batch, case["seq"]), device="cuda")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
            out = model(texts, labels=texts)
        out.loss.backward()
        optimizer.step()

    return step
