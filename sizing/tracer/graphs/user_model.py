"""The result of a user's make_model: a model, its inputs, a function from its output to a loss, and a step of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from sizing.tracer import torch_internals
from sizing.tracer.refusal import Refusal


def parts(said: Any, place: str) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any], Any]:
    """Check the result of `make_model`; return model, positional and keyword arguments, and loss. Raises Refusal."""
    form = "return (model, inputs) or (model, inputs, loss)"
    if not isinstance(said, tuple) or len(said) not in (2, 3):
        count = f" of {len(said)}" if isinstance(said, tuple) else ""
        raise Refusal(f"{place} returned {type(said).__name__}{count}: {form}", True)
    model, inputs, loss = (*said, usual_loss)[:3]
    if not isinstance(model, torch.nn.Module):
        raise Refusal(f"{place} returned {type(model).__name__} as the model: {form}, the model an nn.Module", True)
    if loss is not None and not callable(loss):
        raise Refusal(f"{place} returned {type(loss).__name__} as the loss: a function of the model's output", True)
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    if isinstance(inputs, Mapping) and all(isinstance(key, str) for key in inputs):
        return model, (), dict(inputs), loss or usual_loss
    if isinstance(inputs, (tuple, list)):
        return model, tuple(inputs), {}, loss or usual_loss
    raise Refusal(
        f"{place} returned {type(inputs).__name__} as the inputs: a tuple of what forward takes, or a dict by name",
        True,
    )


def usual_loss(output: Any) -> torch.Tensor:
    """Make a scalar of a model's output: itself, its `loss`, else the mean of its first floating point tensor."""
    if isinstance(output, torch.Tensor) and output.dim() == 0:
        return output
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss
    for each in torch_internals.tensors_in(plain(output)):
        if each.is_floating_point():
            mean: torch.Tensor = each.mean()
            return mean
    raise Refusal(
        f"the model returns {type(output).__name__}, of which no loss can be made: let make_model return "
        "(model, inputs, loss), with loss a function of the output",
        True,
    )


def plain(output: Any) -> Any:
    """Return an output's values, also for an output of a class of its own."""
    if isinstance(output, Mapping):
        return list(output.values())
    if hasattr(output, "__dict__") and not isinstance(output, torch.Tensor):
        return list(vars(output).values())
    return output


def training_step(made: Any, name: str, *, on_gpu: bool, replicas: int) -> Callable[[], None]:
    """Return a function for one step of what `make_model` returned: forward, loss, backward, AdamW; of `replicas` one.

    Raises Refusal if make_model did not return a model with inputs, or if the model has nothing to train.
    """
    model, args, kwargs, loss = parts(made, name)
    if on_gpu:
        model.cuda()
        args, kwargs = torch_internals.mapped(lambda each: each.cuda(), (args, kwargs))
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
