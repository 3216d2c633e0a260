"""Makes a model whose code names a GPU on a machine without one: its tensors are put on the CPU."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from sizing.tracer import torch_internals
from sizing.tracer.graphs import models
from sizing.tracer.placing import CPU, names_gpu
from sizing.tracer.ranks import fake_ranks
from sizing.tracer.refusal import Refusal


class FakeHost(TorchFunctionMode):
    """A mode that puts tensors on the CPU where functions are told to put them on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        tensor: Any = torch.Tensor
        self._moves = (tensor.to, torch_internals.PARSE_TO)
        self._stays = (tensor.cuda, tensor.pin_memory)
        module: Any = torch.nn.Module
        module.cuda = lambda self, device=None: self

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in self._stays:
            return args[0]
        if func in self._moves:
            args = tuple(_here(each) for each in args)
        if "device" in kwargs:
            kwargs = {**kwargs, "device": _here(kwargs["device"])}
        kwargs.pop("pin_memory", None)
        return func(*args, **kwargs)


def _here(value: Any) -> Any:
    return CPU if isinstance(value, (int, str, torch.device)) and names_gpu(value) else value


class TooLarge(Refusal):
    """A model's real tensors do not fit in this process's memory."""


def on_cpu(request: dict[str, Any]) -> models.BuiltModel:
    """Make the model that a request names with real tensors on the CPU, whatever device it names; raises TooLarge."""
    try:
        with FakeHost():
            return models.load(request, "cpu")
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            raise TooLarge("what it does depends on what tensors hold, and real ones take too much memory") from None
        raise


def real_meshes() -> None:
    """Let device meshes have real numbers, although all other tensors have no contents."""
    fake_ranks.real_meshes(types.SimpleNamespace(blind=False))
