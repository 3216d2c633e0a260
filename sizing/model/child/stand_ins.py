"""Operators that torch cannot follow without contents, though their results' shapes are known."""

from __future__ import annotations

from typing import Any

import torch


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


def table() -> dict[Any, Any]:
    """Those that this torch has."""
    found: dict[Any, Any] = {torch.ops.aten.histc.default: histogram}
    grouped = getattr(torch.ops.aten, "_grouped_mm", None)
    if grouped is not None:
        found[grouped.default] = grouped_product
    return found


def quiet_init() -> None:
    """Initial values that torch draws again while some are out of bounds are drawn once: nothing reads them."""

    def trunc_normal_(tensor: Any, mean: float = 0.0, std: float = 1.0, *args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            return tensor.normal_(mean, std)

    torch.nn.init.trunc_normal_ = trunc_normal_
