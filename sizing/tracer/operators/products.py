"""Floating point operations of each operator: torch's own table, and formulas for operators missing there."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

RECURRENT = ("mkldnn_rnn_layer", "_cudnn_rnn")
"""Operators that are whole recurrent layers."""

_UNCOUNTED = re.compile(
    r"aten::_?(fft_|linalg_(?!vector_norm|check_errors|cross|diagonal)|cholesky|triangular_solve|ormqr|geqrf|lu_solve"
    r"|sparse_(addmm|mm|sampled_addmm)|cslt_sparse|pdist_|weight_int\dpack|mixed_dtypes_linear|scaled_grouped_mm"
    r"|miopen_rnn|lstm_mps|native_multi_head_attention|transformer_encoder_layer_fwd)"
)
"""Operators of torch that may take most of a model's time, but have no formula here."""


def formulas() -> dict[Any, Callable[..., Any]]:
    """Map operators to functions that count their operations from their arguments and `out_val`, the result."""
    from torch.utils.flop_counter import flop_registry

    known: dict[Any, Callable[..., Any]] = dict(flop_registry)
    for name, formula in _OURS.items():
        if (packet := getattr(torch.ops.aten, name, None)) is not None:  # not every release has all
            known.setdefault(packet, formula)
    # torch's formula ignores groups in the weight's gradient: with n groups its count is n times too high
    known[torch.ops.aten.convolution_backward] = _convolution_backward
    return known


def uncounted(name: str) -> bool:
    """Whether an operator without a formula, such as aten::_fft_r2c, does significant work."""
    return _UNCOUNTED.match(name) is not None


def grouped(one: Any, two: Any, *_: Any, out_val: Any, **__: Any) -> int:
    """Count a matrix product by groups; if the summed dimension is cut into groups, each sums over its part."""
    cut = out_val.shape[0] if one.dim() == two.dim() == 2 else 1
    return 2 * int(out_val.numel()) * int(one.shape[-1]) // max(1, int(cut))


def matrices(args: Any) -> list[Any]:
    """Return the matrices of a recurrent operator, first the one that multiplies its input."""
    given = args[1] if isinstance(args[1], (list, tuple)) else args[1:3]  # of all layers (cuDNN), or of one (oneDNN)
    return [each for each in given if each.dim() == 2]


def _recurrent(inputs: Any, *args: Any, out_val: Any, **kwargs: Any) -> int:
    """Count the forward pass of recurrent layers: every token is multiplied with every matrix once."""
    tokens = int(inputs.numel()) // max(1, int(inputs.shape[-1]))
    return 2 * tokens * sum(int(each.numel()) for each in matrices((inputs, *args)))


def _recurrent_backward(*args: Any, out_val: Any, **kwargs: Any) -> int:
    return 2 * _recurrent(*args, out_val=out_val, **kwargs)


def _attention(products: int) -> Callable[..., int]:
    """Return a counter for the CPU's flash kernel, which keeps no scores; keys may have fewer heads than queries."""

    def count(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
        query, key = args[products == 5 :][:2]
        return 2 * products * int(query.numel()) * int(key.shape[-2])

    return count


def _product(one: Any, two: Any, *_: Any, out_val: Any, **__: Any) -> int:
    return 2 * int(out_val.numel()) * int(one.shape[-1])


def _added(summand: Any, one: Any, two: Any, *_: Any, out_val: Any, **__: Any) -> int:
    """Count a product that something is added to; all batches count, also if their products are summed."""
    batches = int(one.shape[0]) if one.dim() == 3 else 1
    return 2 * batches * int(out_val.numel()) * int(one.shape[-1])


def _trilinear(one: Any, two: Any, three: Any, *expanded: Any, out_val: Any, **__: Any) -> int:
    """Count a sum over products of three tensors, each expanded along the dimensions that it lacks (nn.Bilinear)."""
    spread = []
    for tensor, lacking in zip((one, two, three), expanded, strict=False):
        sizes = iter(tensor.shape)
        dims = tensor.dim() + len(lacking)
        spread.append([1 if at in lacking else int(next(sizes)) for at in range(dims)])
    return 2 * int(math.prod(max(sizes) for sizes in zip(*spread, strict=True)))


def _distances(one: Any, two: Any, *_: Any, out_val: Any, **__: Any) -> int:
    """Count all distances between two sets of vectors: a difference, a power and a sum per element."""
    return 3 * int(out_val.numel()) * int(one.shape[-1])


def _distances_backward(gradient: Any, one: Any, *_: Any, out_val: Any, **__: Any) -> int:
    return 3 * int(gradient.numel()) * int(one.shape[-1])


def _convolution_backward(gradient: Any, inputs: Any, weight: Any, *args: Any, out_val: Any, **kwargs: Any) -> int:
    """Count the gradients of a convolution's input and weight, if requested: each as many as the forward pass."""
    transposed, wanted = args[4], args[7]
    met = inputs if transposed else gradient
    return 2 * int(met.numel()) * (int(weight.numel()) // int(weight.shape[0])) * sum(map(bool, wanted[:2]))


def _convolution_tbc(inputs: Any, weight: Any, *_: Any, out_val: Any, **__: Any) -> int:
    return 2 * int(out_val.numel()) * int(weight.shape[0]) * int(weight.shape[1])


_OURS: Mapping[str, Callable[..., int]] = {
    "_scaled_dot_product_flash_attention_for_cpu": _attention(2),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention(5),  # it computes the scores again
    "_grouped_mm": grouped,
    **dict.fromkeys(RECURRENT, _recurrent),
    **dict.fromkeys((f"{name}_backward" for name in RECURRENT), _recurrent_backward),
    "mv": _product,
    "dot": lambda one, *_, out_val, **__: 2 * int(one.numel()),
    "_int_mm": _product,
    "addmv": _added,
    "addbmm": _added,
    "_addmm_activation": _added,
    "_trilinear": _trilinear,
    "_euclidean_dist": lambda one, two, *_, out_val, **__: 2 * int(out_val.numel()) * int(one.shape[-1]),
    "_cdist_forward": _distances,
    "_cdist_backward": _distances_backward,
    "conv_tbc": _convolution_tbc,
}
