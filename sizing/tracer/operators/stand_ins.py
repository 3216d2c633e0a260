"""Stand-ins for operators that torch cannot run without contents, although their results' shapes are known."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from sizing.tracer import torch_internals


def grouped_product(func: Any, args: Any, kwargs: Any) -> Any:
    """Make the result of a matrix product by groups (experts); torch's own version without contents needs bf16."""
    one, two = args[0], args[1]
    groups = args[2] if len(args) > 2 else kwargs.get("offs")
    dtype = kwargs.get("out_dtype") or one.dtype
    shape = [one.shape[-2], two.shape[-1]]
    if one.dim() == two.dim():
        shape.insert(0, groups.shape[0] if one.dim() == 2 else one.shape[0])
    return one.new_empty(shape, dtype=dtype)


def histogram(func: Any, args: Any, kwargs: Any) -> Any:
    """Make the result of a histogram, which a GPU computes of whole numbers, too."""
    return args[0].new_empty([args[1] if len(args) > 1 else kwargs.get("bins", 100)])


def equal(func: Any, args: Any, kwargs: Any) -> Any:
    """Make a mask that remembers for which number of which tensor it is true."""
    out = func(*args, **kwargs)
    if isinstance(out, torch_internals.FakeTensor):
        setattr(out, "part", (weakref.ref(args[0]), args[0]._version, args[1]))  # noqa: B010  (it is one of ours)
    return out


def most_of(mask: Any) -> int:
    """Return the most places where a mask may be true: everywhere.

    Masks of one tensor for several numbers (experts, `chosen == 3`) are disjoint. The first of them gets all places,
    each other one a single place, so that its code still runs.
    """
    whole = int(mask.numel())
    source, version, value = getattr(mask, "part", (lambda: None, 0, 0))
    tensor = source()
    if tensor is None or tensor._version != version or mask._version:
        return whole
    given: dict[Any, int] = tensor.__dict__.setdefault("given", {})
    return given.setdefault(value, min(1, whole) if given else whole)


def selected(func: Any, args: Any, kwargs: Any) -> Any:
    """Make the indices of the places where a mask is true: as many as possible."""
    return args[0].new_empty([most_of(args[0]), args[0].dim()], dtype=torch.int64)


def masked(func: Any, args: Any, kwargs: Any) -> Any:
    """Index a tensor with masks, which may be true everywhere."""
    places: list[Any] = []
    for index in args[1]:
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            most = most_of(index)
            places += [index.new_empty([most], dtype=torch.int64) for _ in range(index.dim())]
        else:
            places.append(index)
    return func(args[0], places)


def chosen(func: Any, args: Any, kwargs: Any) -> Any:
    """Make the elements of a tensor that a mask selects after both are broadcast: at most all."""
    return args[0].new_empty([torch.logical_and(*args[:2]).numel()])


def alignment(func: Any, args: Any, kwargs: Any) -> Any:
    """Make the results of the CTC loss: a number per sample, and the values per target position for backward."""
    scores, targets, lengths = args[0], args[1], args[3]
    longest = (
        targets.shape[1] if targets.dim() == 2 else max(lengths) if isinstance(lengths, (list, tuple)) else len(targets)
    )
    batch = scores.shape[1]
    return scores.new_empty([batch]), scores.new_empty([batch, scores.shape[0], 2 * longest + 1])


def alignment_backward(func: Any, args: Any, kwargs: Any) -> Any:
    """Make the gradient of the CTC loss, which is as large as the scores."""
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
"""Operators whose results depend on the contents of a mask, with stand-ins of the largest size."""


def table() -> dict[Any, Any]:
    """Return the stand-ins for operators of this torch whose results have a known shape."""
    return _there(_SHAPED)


def bounds(met: Callable[[], None]) -> dict[Any, Any]:
    """Return the stand-ins that give upper bounds of results; each call of one calls `met`."""

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
    """Draw truncated initial values once; torch repeats the draw until all are in bounds, but here none are read."""

    def trunc_normal_(tensor: Any, mean: float = 0.0, std: float = 1.0, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return tensor.normal_(mean, std)

    torch.nn.init.trunc_normal_ = trunc_normal_


def as_without_a_trace() -> None:
    """Let packages that the step has imported behave as on real tensors.

    transformers checks whether each row of a batch is one sequence. It cannot see that here and would make a mask for
    attention, so each row is assumed to be one sequence. A mask that the user passes is assumed to mask something.
    """
    masking: Any = sys.modules.get("transformers.masking_utils")
    if hasattr(masking, "find_packed_sequence_indices"):
        masking.find_packed_sequence_indices = lambda position_ids: None
