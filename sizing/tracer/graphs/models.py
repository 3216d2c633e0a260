"""Makes the user's model with their `make_model`, to read its graph or to profile it."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from sizing.tracer import main, torch_internals
from sizing.tracer.graphs import user_model
from sizing.tracer.ranks import tensor_plans
from sizing.tracer.refusal import Refusal


@dataclass(frozen=True, slots=True)
class BuiltModel:
    """A model in training mode, the arguments of its forward pass, and the function from its output to a loss.

    `note` is a sentence on assumptions that were made, or "".
    """

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    loss: Callable[[Any], torch.Tensor]
    note: str = ""


def load(request: Mapping[str, Any], device: str | None = None) -> BuiltModel:
    """Make the model that `request` names by `path`, `function`, `batch` and `tp` (default 1).

    With `device`, the model and its inputs are made there; else the active modes place them. With tp > 1 this process
    is rank 0 of a group of tp ranks without other processes (collectives return at once, and their results are
    meaningless). The model is then rank 0's part: made by `make_model(batch_size, tp=tp)`, or cut by the model's own
    plan. Raises Refusal, one line, for a make_model that does not follow docs/howto/cells.md.
    """
    tp = int(request.get("tp", 1))
    join(tp)
    make = main.load(request["path"], request["function"])
    name, keywords = request["function"], {}
    if takes_tp(make):
        keywords["tp"] = tp
    if isinstance(make, type):
        raise Refusal(f"{name} is a class: name a function that makes it, def make_model(batch_size, *, tp=1)", True)
    try:
        inspect.signature(make).bind(request["batch"], **keywords)
    except TypeError as error:
        raise Refusal(
            f"{name} cannot be called with a batch size ({error}): write def {name}(batch_size, *, tp=1)", True
        ) from None
    with contextlib.nullcontext() if device is None else torch.device(device):
        said = make(request["batch"], **keywords)
    model, args, kwargs, loss = user_model.parts(said, f"{os.path.basename(request['path'])}:{_line(make)}: {name}")
    note = ""
    if tp > 1 and not keywords:
        note = tensor_plans.cut(model, tp, name)
    model.train()
    config: Any = getattr(model, "config", None)
    if getattr(config, "use_cache", None) is True:  # transformers' cache of keys and values is only for generation
        config.use_cache = False
    if device is not None:
        model.to(device)
        args, kwargs = torch_internals.mapped(lambda each: each.to(device), (args, kwargs))
    return BuiltModel(model, args, kwargs, loss, note)


def join(size: int) -> None:
    """Join a group of `size` ranks alone; the user's own call of init_process_group then keeps that group.

    A group of one is joined only by that call.
    """
    distributed: Any = torch.distributed
    if not distributed.is_available():
        if size > 1:
            raise Refusal("this torch has no torch.distributed, which tensor parallelism needs", True)
        return
    if size > 1 and not distributed.is_initialized():
        torch_internals.join_fake_group(size)

    def late(*args: Any, **kwargs: Any) -> None:
        if not torch.distributed.is_initialized():
            torch_internals.join_fake_group(1)

    distributed.init_process_group = late
    for name in ("destroy_process_group", "barrier", "broadcast_object_list"):
        setattr(distributed, name, _nothing)


def takes_tp(make: Callable[..., Any]) -> bool:
    """Whether a function has a keyword `tp`."""
    try:
        known = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(each.name == "tp" and each.kind in kinds for each in known) or any(
        each.kind is inspect.Parameter.VAR_KEYWORD for each in known
    )


def _line(make: Any) -> int:
    code = getattr(inspect.unwrap(make), "__code__", None)
    return int(getattr(code, "co_firstlineno", 1))


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass
