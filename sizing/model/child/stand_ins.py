"""Operators that torch cannot follow without contents, though their results' shapes are known."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from sizing.model.child import private


def grouped_product(func: Any, args: Any, kwargs: Any) -> Any:
    """Products of matrices by groups (experts): torch's own form of it without contents takes bf16 alone."""
    one, two = args[0], args[1]
    groups = args[2] if len(args) > 2 else kwargs.get("offs")
    dtype = kwargs.get("out_dtype") or one.dtype
    shape = [one.shape[-2], two.shape[-1]]
    if one.dim() == two.dim():
        shape.insert(0, groups.shape[0] if one.dim() == 2 else one.shape[0])
    return one.new_empty(shape, dtype=dtype)


def histogram(func: Any, args: Any, kwargs: Any) -> Any:
    """A histogram, which a GPU makes of whole numbers too."""
    return args[0].new_empty([args[1] if len(args) > 1 else kwargs.get("bins", 100)])


def equal(func: Any, args: Any, kwargs: Any) -> Any:
    """A mask that remembers which number of which tensor it is true for."""
    out = func(*args, **kwargs)
    if isinstance(out, private.FakeTensor):
        setattr(out, "part", (weakref.ref(args[0]), args[0]._version, args[1]))  # noqa: B010  (it is one of ours)
    return out


def most_of(mask: Any) -> int:
    """How often a mask may be true: everywhere.

    Masks of one tensor for several numbers (experts, `chosen == 3`) are true nowhere together: all is left to the first
    of them, and to the others one place, so that they do something.
    """
    whole = int(mask.numel())
    source, version, value = getattr(mask, "part", (lambda: None, 0, 0))
    tensor = source()
    if tensor is None or tensor._version != version or mask._version:
        return whole
    given: dict[Any, int] = tensor.__dict__.setdefault("given", {})
    return given.setdefault(value, min(1, whole) if given else whole)


def selected(func: Any, args: Any, kwargs: Any) -> Any:
    """Where a mask is true, at most."""
    return args[0].new_empty([most_of(args[0]), args[0].dim()], dtype=torch.int64)


def masked(func: Any, args: Any, kwargs: Any) -> Any:
    """What is indexed by masks, of which all may be true."""
    places: list[Any] = []
    for index in args[1]:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            most = most_of(index)
            places += [index.new_empty([most], dtype=torch.int64) for _ in range(index.dim())]
        else:
            places.append(index)
    return func(args[0], places)


def chosen(func: Any, args: Any, kwargs: Any) -> Any:
    """What a mask leaves of a tensor that it is spread over: all, at most."""
    return args[0].new_empty([torch.logical_and(*args[:2]).numel()])


def alignment(func: Any, args: Any, kwargs: Any) -> Any:
    """The CTC loss: a number a sample, and what is kept of each place in its target for backward."""
    scores, targets, lengths = args[0], args[1], args[3]
    longest = (
        targets.shape[1] if targets.dim() == 2 else max(lengths) if isinstance(lengths, (list, tuple)) else len(targets)
    )
    batch = scores.shape[1]
    return scores.new_empty([batch]), scores.new_empty([batch, scores.shape[0], 2 * longest + 1])


def alignment_backward(func: Any, args: Any, kwargs: Any) -> Any:
    """As large as the scores."""
    return torch.empty_like(args[1])


_SHAPED = {
    "histc": histogram,
    "_grouped_mm": grouped_product,
    "_ctc_loss": alignment,
    "_ctc_loss.Tensor": alignment,
    "_ctc_loss_backward": alignment_backward,
    "_ctc_loss_backward.Tensor": alignment_backward,
}
_BOUNDED = {"nonzero": selected, "masked_select": chosen}
"""Operators whose results are as large as a mask says: at most so large."""


def table() -> dict[Any, Any]:
    """Those whose results have one shape, that this torch has."""
    return _there(_SHAPED)


def bounds(met: Callable[[], None]) -> dict[Any, Any]:
    """Those whose results are only known to be no larger; `met` is called for each call of one."""

    def told(function: Any) -> Any:
        def call(func: Any, args: Any, kwargs: Any) -> Any:
            met()
            return function(func, args, kwargs)

        return call

    def index(func: Any, args: Any, kwargs: Any) -> Any:
        masks = any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in args[1])
        return told(masked)(func, args, kwargs) if masks else func(*args, **kwargs)

    return {
        **_there({name: told(function) for name, function in _BOUNDED.items()}),
        **_there({"index.Tensor": index, "eq.Scalar": equal}),
    }


def _there(functions: Mapping[str, Any]) -> dict[Any, Any]:
    found = {}
    for name, function in functions.items():
        packet, _, overload = name.partition(".")
        known = getattr(torch.ops.aten, packet, None)
        if known is not None and (overload or "default") in known.overloads():
            found[getattr(known, overload or "default")] = function
    return found


def quiet_init() -> None:
    """Initial values that torch draws again while some are out of bounds are drawn once: nothing reads them."""

    def trunc_normal_(tensor: Any, mean: float = 0.0, std: float = 1.0, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return tensor.normal_(mean, std)

    torch.nn.init.trunc_normal_ = trunc_normal_
