"""The training step of a make_model: forward, loss, backward, AdamW, as the cells of a job are profiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sizing.model.child.refusal import Refusal


def of_model(made: Sequence[Any], name: str, *, on_gpu: bool, replicas: int) -> Callable[[], None]:
    """A function that does one step of what a make_model returned: (model, inputs) or (model, inputs, loss)."""
    import torch

    if len(made) not in (2, 3) or not isinstance(made[0], torch.nn.Module):
        raise Refusal(
            f"{name} returned a {type(made).__name__} that is not (model, inputs) or (model, inputs, loss)", True
        )
    model, inputs = made[0], made[1]
    loss = made[2] if len(made) == 3 else None
    if on_gpu:
        model, inputs = model.cuda(), _on_gpu(inputs)
    wanting = [each for each in model.parameters() if each.requires_grad]
    if not wanting:
        raise Refusal(f"{name} returned a model without a trainable parameter", True)
    if replicas > 1:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(wanting)

    def step() -> None:
        output = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
        _scalar(output if loss is None else loss(output), name).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _on_gpu(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return value.cuda()
    if isinstance(value, dict):
        return {key: _on_gpu(each) for key, each in value.items()}
    return tuple(map(_on_gpu, value)) if isinstance(value, (tuple, list)) else value


def _scalar(output: Any, name: str) -> Any:
    """The loss in an output: itself where it is a scalar, its `loss`, or the mean of its first float tensor."""
    import torch

    found = getattr(output, "loss", None)
    if found is None and isinstance(output, dict):
        found = output.get("loss")
    for each in (found, output):
        if isinstance(each, torch.Tensor) and each.ndim == 0:
            return each
    if isinstance(output, torch.Tensor):
        values: Any = [output]
    elif isinstance(output, dict):
        values = output.values()
    else:
        values = output if isinstance(output, (tuple, list)) else ()
    for each in values:
        if isinstance(each, torch.Tensor) and each.is_floating_point():
            return each.mean()
    raise Refusal(f"the model of {name} returns no tensor to make a loss of: return (model, inputs, loss)", True)
