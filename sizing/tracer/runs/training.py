"""The training step of a user's make_model, for a trace: forward, loss, backward, AdamW."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from sizing.tracer.graphs import user_model
from sizing.tracer.refusal import Refusal


def of_model(made: Any, name: str, *, on_gpu: bool, replicas: int) -> Callable[[], None]:
    """Return a function that does one step of the model that a make_model returned, as one of `replicas`.

    Raises Refusal if make_model did not return a model with inputs, or if the model has nothing to train.
    """
    model, args, kwargs, loss = user_model.parts(made, name)
    if on_gpu:
        model.cuda()
        args, kwargs = tree_map_only(torch.Tensor, lambda each: each.cuda(), (args, kwargs))
    model.train()
    trained = [each for each in model.parameters() if each.requires_grad]
    if not trained:
        raise Refusal(f"the model of {name} has no parameter that is trained", usage=True)
    if replicas > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(trained)

    def step() -> None:
        loss(model(*args, **kwargs)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step
