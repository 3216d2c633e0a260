"""Intercepts calls of torch's functions: tracks which tensors are on the GPU, and answers reads of unknown numbers.

All tensors are CPU tensors without contents. The record of a storage says whether it is on the GPU. It is set where the
user's code names a GPU, and results computed from such a tensor are on the GPU too.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from sizing.tracer import torch_internals
from sizing.tracer.operators import constants, packing
from sizing.tracer.refusal import Refusal
from sizing.tracer.tracker import Tracker

_UNKNOWN = (
    "which a trace does not know: write it without a branch (torch.where, clip_grad_norm_), or leave it out of step(); "
    "to ask torch.isfinite is fine"
)
GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")
_JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
_BETWEEN = {"TO_BOOL", "COMPARE_OP", "UNARY_NOT", "EXTENDED_ARG", "NOT_TAKEN"}


def names_gpu(device: Any) -> bool:
    """Whether a device argument of a torch function means a GPU."""
    if isinstance(device, int) and not isinstance(device, bool):
        return True
    return isinstance(device, (str, torch.device)) and torch.device(device).type == "cuda"


class Unread(float):
    """A stand-in for a number in a tensor: code may print it and calculate with it, but not branch on it."""

    def _decide(self, *_: Any) -> Any:
        # torch's own optimizers (Adafactor) clamp their rates by comparisons, which changes no tensor's size.
        if sys._getframe(1).f_globals.get("__name__", "").startswith("torch.optim."):
            return True
        raise Refusal(f"the step decides on a number that a tensor holds, {_UNKNOWN}")

    __bool__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __int__ = __index__ = _decide
    __trunc__ = __floor__ = __ceil__ = is_integer = _decide
    __hash__ = float.__hash__

    def __round__(self, digits: Any = None) -> Any:
        return self._decide() if digits is None else Unread(1.0)

    def _reckon(self, *_: Any) -> Unread:
        return Unread(1.0)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _reckon
    __rtruediv__ = __neg__ = __pos__ = __abs__ = __pow__ = __rpow__ = _reckon


class Placing(TorchFunctionMode):
    """The mode that intercepts the calls; with `gpus` the user's code believes that there is a GPU."""

    def __init__(self, tracker: Tracker, gpus: bool) -> None:
        super().__init__()
        self.tracker = tracker
        self.gpus = gpus
        tensor: Any = torch.Tensor
        self._special: dict[Any, Callable[..., Any]] = {
            tensor.item: self._item,
            tensor.tolist: self._tolist,
            tensor.numpy: self._numpy,
            tensor.__array__: self._numpy,
            tensor.__bool__: self._decided,
            tensor.__float__: self._as_float,
            tensor.__format__: self._formatted,
            torch_internals.PAD_PACKED: packing.padded,
            tensor.data.__set__: self._replaced,
            **constants.finite(tracker.fake),
        }
        if gpus:
            self._special.update(
                {
                    tensor.to: self._to,
                    torch_internals.PARSE_TO: self._parsed,
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
        self._factories = torch_internals.factories()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        special = self._special.get(func)
        if special is not None:
            return special(func, args, kwargs)
        if any(isinstance(value, Unread) for value in (*args, *kwargs.values())):
            return self._made_of_unread(func, args, kwargs)
        return self._called(func, args, kwargs)

    def _made_of_unread(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a function with an unknown number among its arguments; its result is unknown too."""
        before, self.tracker.unread = self.tracker.unread, True
        try:
            out = self._called(func, args, kwargs)
        finally:
            self.tracker.unread = before
        torch_internals.forget(self.tracker.fake, out)
        return out

    def _called(self, func: Any, args: Any, kwargs: Any) -> Any:
        if not self.gpus:
            return func(*args, **kwargs)
        device = kwargs.get("device")
        if device is None:
            if func not in self._factories:
                return func(*args, **kwargs)
            gpu = names_gpu(torch_internals.default_device())
        else:
            gpu = names_gpu(device)
        if gpu:
            kwargs = {**kwargs, "device": CPU}
        kwargs.pop("pin_memory", None)
        return self._placed(gpu, func, args, kwargs)

    def _placed(self, gpu: bool, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a function whose new tensors are on the GPU (`gpu`) or on the host."""
        before, self.tracker.place = self.tracker.place, gpu
        self.tracker.named |= gpu
        try:
            return func(*args, **kwargs)
        finally:
            self.tracker.place = before

    # -- moves between devices ---

    def _device(self, func: Any, args: Any, kwargs: Any) -> Any:
        return GPU if self.tracker.on_gpu(args[0]) else func(*args)

    def _parsed(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Parse the arguments of a module's `to`; torch accepts a plain number only on a machine with a GPU."""
        first, rest = args[:1], args[1:]
        return func(*("cuda" if names_gpu(each) else each for each in first), *rest, **kwargs)

    def _to(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor, rest = args[0], args[1:]
        order = ["device", "dtype", "non_blocking", "copy"]
        if rest and isinstance(rest[0], torch.Tensor):
            order = ["other", "non_blocking", "copy"]
        elif rest and isinstance(rest[0], torch.dtype):
            order = order[1:]
        given = {**{order[at]: value for at, value in enumerate(rest)}, **kwargs}
        device, other = given.pop("device", None), given.pop("other", None)
        given = {name: value for name, value in given.items() if name != "non_blocking" and value is not None}
        if other is not None:
            return self._moved(tensor, self.tracker.on_gpu(other), **{"dtype": other.dtype, **given})
        if device is None:
            return func(tensor, **{"dtype": tensor.dtype, **given})
        if not names_gpu(device) and torch.device(device).type != "cpu":
            return func(*args, **kwargs)
        return self._moved(tensor, names_gpu(device), **given)

    def _moved(self, tensor: Any, gpu: bool, **kwargs: Any) -> Any:
        """Move a tensor to the GPU or the host; while a module moves, a parameter moves with all its views."""
        self.tracker.named |= gpu
        if str(torch_internals.local(tensor).device) == "meta":
            raise Refusal("a tensor without contents (meta) is moved; use to_empty(device=...)")
        if self.tracker.on_gpu(tensor) == gpu:
            return self._placed(gpu, torch.Tensor.to, (tensor, kwargs.pop("dtype", tensor.dtype)), kwargs)
        if self.tracker.moves and isinstance(tensor, torch.nn.Parameter):
            self.tracker.move(tensor, gpu)
            return self._placed(gpu, torch.Tensor.to, (tensor, kwargs.pop("dtype", tensor.dtype)), kwargs)
        kwargs["copy"] = True
        return self._placed(gpu, torch.Tensor.to, (tensor, kwargs.pop("dtype", tensor.dtype)), kwargs)

    # -- unknown numbers ---

    def _item(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except torch_internals.DataDependentOutputException:
            if self.tracker.in_optimizer(args[0]):
                return 100.0  # a step count well into training: some optimizers do otherwise in their first steps
            if args[0].is_floating_point():
                return Unread(1.0)
            raise Refusal(
                "the step reads a whole number out of a tensor (item), which a trace does not know: take it from shapes"
            ) from None

    def _formatted(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except (torch_internals.DataDependentOutputException, TypeError):  # torch formats no number of a fake tensor
            if args[0].dim() or args[0].is_complex():
                raise
            return format(1.0 if args[0].is_floating_point() else 1, *args[1:])

    def _as_float(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except torch_internals.DataDependentOutputException:
            return 1.0

    def _tolist(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except (torch_internals.DataDependentOutputException, NotImplementedError, RuntimeError):
            raise Refusal(
                "the step reads a tensor's numbers (tolist), which a trace does not know: leave that out of step()"
            ) from None

    def _numpy(self, func: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(torch_internals.local(args[0]), torch_internals.FakeTensor):
            raise Refusal(
                "the step hands a tensor to numpy, and a trace does not know its numbers: leave metrics out of step()"
            )
        return func(*args, **kwargs)

    def _replaced(self, func: Any, args: Any, kwargs: Any) -> Any:
        torch_internals.forget(self.tracker.fake, args[0])
        return func(*args, **kwargs)

    def _decided(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except torch_internals.DataDependentOutputException:
            answer = _passing(sys._getframe(2))  # the frame of the code that made torch call this mode
            if answer is None:
                raise Refusal(f"the step decides on what a tensor holds, {_UNKNOWN}") from None
            return answer


def _passing(frame: FrameType) -> bool | None:
    """Return the answer with which a frame at a branch raises no error; None if not exactly one answer fails.

    A branch with one answer that leads to an error is only a check: `if ...: raise`, `assert ...`, and any code that
    leads to the error without a further branch.
    """
    code = [each for each in dis.get_instructions(frame.f_code) if each.opname != "CACHE"]
    at = next((place for place, each in enumerate(code) if each.offset >= frame.f_lasti), len(code))
    negated = False
    while at < len(code) and code[at].opcode not in _JUMPS:
        if code[at].opname not in _BETWEEN:
            return None
        negated ^= code[at].opname == "UNARY_NOT"
        at += 1
    if at == len(code) or "POP_JUMP" not in code[at].opname or "NONE" in code[at].opname:
        return None
    jumps_if_true = "IF_TRUE" in code[at].opname
    target = next(place for place, each in enumerate(code) if each.offset == code[at].argval)
    jump_fails, next_fails = _fails(code[target:]), _fails(code[at + 1 :])
    if jump_fails == next_fails:
        return None
    return (jumps_if_true == next_fails) != negated


def _fails(code: list[dis.Instruction]) -> bool:
    """Whether instructions raise an error before they branch or return."""
    for each in code:
        if each.opname == "RAISE_VARARGS":
            return True
        if each.opcode in _JUMPS or each.opname.startswith(("RETURN", "YIELD", "SEND")):
            return False
    return False
