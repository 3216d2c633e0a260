"""Sees every call of torch's functions: keeps apart what lies on the GPU, and answers what has no answer in a trace.

All tensors are tensors of the CPU without contents. That one lies on the GPU stands in its storage's record, set where
the user's code names a GPU; what comes out of it lies there too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from sizing.model.child import private
from sizing.model.child.refusal import Refusal
from sizing.model.child.tracker import Tracker

GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")


def names_gpu(device: Any) -> bool:
    """Whether a device, as functions take it, is a GPU."""
    if isinstance(device, int) and not isinstance(device, bool):
        return True
    return isinstance(device, (str, torch.device)) and torch.device(device).type == "cuda"


class Unread(float):
    """The stand-in for a number that is in a tensor: may be printed and reckoned with, and not be decided on."""

    def _decide(self, *_: Any) -> Any:
        # torch's own optimizers (Adafactor) bound their rates so, which changes no tensor's size.
        if sys._getframe(1).f_globals.get("__name__", "").startswith("torch.optim."):
            return True
        raise Refusal("the step decides on a number that a tensor holds, which a trace does not know")

    __bool__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __int__ = __index__ = _decide
    __trunc__ = __round__ = __floor__ = __ceil__ = is_integer = _decide
    __hash__ = float.__hash__

    def _reckon(self, *_: Any) -> Unread:
        return Unread(1.0)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _reckon
    __rtruediv__ = __neg__ = __pos__ = __abs__ = __pow__ = __rpow__ = _reckon


class Placing(TorchFunctionMode):
    """The mode; with `gpus` a GPU is what the user's code believes to have."""

    def __init__(self, tracker: Tracker, gpus: bool) -> None:
        super().__init__()
        self.tracker = tracker
        self.gpus = gpus
        tensor: Any = torch.Tensor
        self._special: dict[Any, Callable[..., Any]] = {
            tensor.item: self._item,
            tensor.tolist: self._tolist,
            tensor.numpy: self._numpy,
            tensor.__bool__: self._decided,
            tensor.__float__: self._as_float,
        }
        if gpus:
            self._special.update(
                {
                    tensor.to: self._to,
                    tensor.cuda: lambda func, args, kwargs: self._moved(args[0], True),
                    tensor.cpu: lambda func, args, kwargs: self._moved(args[0], False),
                    tensor.device.__get__: self._device,
                    tensor.is_cuda.__get__: lambda func, args, kwargs: self.tracker.on_gpu(args[0]),
                    tensor.is_cpu.__get__: lambda func, args, kwargs: not self.tracker.on_gpu(args[0]),
                    tensor.get_device: lambda func, args, kwargs: 0 if self.tracker.on_gpu(args[0]) else -1,
                    tensor.pin_memory: lambda func, args, kwargs: args[0],
                    tensor.record_stream: lambda func, args, kwargs: None,
                }
            )
        self._factories = private.factories()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        special = self._special.get(func)
        if special is not None:
            return special(func, args, kwargs)
        if not self.gpus:
            return func(*args, **kwargs)
        device = kwargs.get("device")
        if device is None:
            if func not in self._factories:
                return func(*args, **kwargs)
            gpu = names_gpu(private.default_device())
        else:
            gpu = names_gpu(device)
        if gpu:
            kwargs = {**kwargs, "device": CPU}
        kwargs.pop("pin_memory", None)
        return self._placed(gpu, func, args, kwargs)

    def _placed(self, gpu: bool, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a function whose new tensors lie on the GPU, or on the host."""
        before, self.tracker.place = self.tracker.place, gpu
        self.tracker.named |= gpu
        try:
            return func(*args, **kwargs)
        finally:
            self.tracker.place = before

    # -- from device to device ---

    def _device(self, func: Any, args: Any, kwargs: Any) -> Any:
        return GPU if self.tracker.on_gpu(args[0]) else func(*args)

    def _to(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor, rest = args[0], list(args[1:])
        if rest and isinstance(rest[0], torch.Tensor):
            gpu, rest = self.tracker.on_gpu(rest[0]), [rest[0].dtype, *rest[1:]]
        elif rest and (rest[0] is None or isinstance(rest[0], (str, torch.device, int))):
            named, rest = rest[0], rest[1:]
            if named is None:
                return func(tensor, *rest, **kwargs)
            gpu = names_gpu(named)
            if not gpu and torch.device(named).type != "cpu":
                return func(*args, **kwargs)
        elif kwargs.get("device") is not None:
            gpu = names_gpu(kwargs["device"])
            if not gpu and torch.device(kwargs["device"]).type != "cpu":
                return func(*args, **kwargs)
            kwargs = {name: value for name, value in kwargs.items() if name != "device"}
        else:
            return func(*args, **kwargs)
        kwargs = {name: value for name, value in kwargs.items() if name != "non_blocking"}
        if rest and isinstance(rest[0], torch.dtype):
            kwargs["dtype"] = rest[0]
        return self._moved(tensor, gpu, **{name: value for name, value in kwargs.items() if name in ("dtype", "copy")})

    def _moved(self, tensor: Any, gpu: bool, **kwargs: Any) -> Any:
        """A tensor on the GPU or on the host; a parameter moves with all its views, as a module's do."""
        self.tracker.named |= gpu
        if str(private.local(tensor).device) == "meta":
            raise Refusal("a tensor without contents (meta) is moved; use to_empty(device=...)")
        if self.tracker.on_gpu(tensor) == gpu:
            return self._placed(gpu, torch.Tensor.to, (tensor, kwargs.pop("dtype", tensor.dtype)), kwargs)
        if isinstance(tensor, torch.nn.Parameter):
            self.tracker.move(tensor, gpu)
            return self._placed(gpu, torch.Tensor.to, (tensor, kwargs.pop("dtype", tensor.dtype)), kwargs)
        kwargs["copy"] = True
        return self._placed(gpu, torch.Tensor.to, (tensor, kwargs.pop("dtype", tensor.dtype)), kwargs)

    # -- what a trace does not know ---

    def _item(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except private.DataDependentOutputException:
            if args[0].is_floating_point():
                return Unread(1.0)
            raise Refusal("the step reads a whole number out of a tensor (item), which a trace does not know") from None

    def _as_float(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except private.DataDependentOutputException:
            return 1.0

    def _tolist(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except (private.DataDependentOutputException, NotImplementedError, RuntimeError):
            raise Refusal("the step reads a tensor's numbers (tolist), which a trace does not know") from None

    def _numpy(self, func: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(private.local(args[0]), private.FakeTensor):
            raise Refusal("the step hands a tensor to numpy, and a trace does not know its numbers")
        return func(*args, **kwargs)

    def _decided(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except private.DataDependentOutputException:
            raise Refusal("the step decides on what a tensor holds, which a trace does not know") from None
