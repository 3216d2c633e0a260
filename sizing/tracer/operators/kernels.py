"""Operators whose memory differs between GPU and CPU, made to save and cast the tensors that they do on a GPU."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from sizing.tracer import torch_internals

_torch: Any = torch
_libraries: list[Any] = []
_aten: Any = torch.ops.aten

# Operators that autocast runs in fp32 on a GPU only: torch's table "CUDA Ops that can autocast to float32".
_FP32 = """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor
pow.Scalar softplus layer_norm group_norm cosine_similarity poisson_nll_loss nll_loss nll_loss2d hinge_embedding_loss
kl_div l1_loss smooth_l1_loss huber_loss margin_ranking_loss soft_margin_loss triplet_margin_loss
binary_cross_entropy_with_logits dist cdist renorm logsumexp norm.Scalar norm.ScalarOpt_dim
"""
# Operators whose inputs autocast leaves as they are on a GPU, and whose results are fp32.
_INTO_FP32 = "prod cumprod cumsum sum sum.dim_IntList linalg_vector_norm"
# Operators that autocast runs in fp32 on a CPU, and leaves as they are on a GPU.
_AS_IT_IS = """
avg_pool3d polar quantile nanquantile stft grid_sampler_2d grid_sampler_3d adaptive_avg_pool3d
cross_entropy_loss max_pool3d max_unpool2d max_unpool3d reflection_pad1d reflection_pad2d replication_pad1d
replication_pad2d replication_pad3d
"""


_WIDEST_HEAD = 256


def like_a_gpu(tracker: Any) -> None:
    """Replace the CPU's operators by ones that behave as on a GPU, in this process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of each kernel that is replaced
        _register()
    backward = _aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    tracker.scratch[backward] = _attention_backward_scratch


def _register() -> None:
    autograd = _torch.library.Library("aten", "IMPL", "AutogradCPU")
    autocast = _torch.library.Library("aten", "IMPL", "AutocastCPU")
    _libraries.extend((autograd, autocast))
    autograd.impl("dropout", _dropout)
    autograd.impl("scaled_dot_product_attention", _attention)
    if hasattr(_aten, "_fused_rms_norm"):
        autograd.impl("rms_norm", _rms_norm)
    for name in _FP32.split():
        _put(autocast, name, _in_fp32(name))
    for name in _INTO_FP32.split():
        _put(autocast, name, _into_fp32(name))
    _put(autocast, "grid_sampler", _in_the_widest("grid_sampler"))
    for name in _AS_IT_IS.split():
        _put(autocast, name, torch.library.fallthrough_kernel)
    for name, fused in (("softmax", _aten._softmax), ("log_softmax", _aten._log_softmax)):
        _put(autocast, f"{name}.int", _softmax_in_fp32(getattr(_aten, name).int, fused.default))


def _attention_backward_scratch(args: Any) -> int:
    """Return the bytes of the buffer in which the flash kernel adds up the queries' gradients.

    The buffer is fp32, with rows and widths rounded up; for fp32 inputs there is none. If heads share keys, the kernel
    first makes the keys' and values' gradients for each head, which count, too.
    """
    query: torch.Tensor = args[1]
    key: torch.Tensor = args[2]
    if query.dtype == torch.float32:
        return 0
    batch, heads, rows, width = query.shape
    spread = 2 * query.element_size() * batch * heads * key.shape[2] * width if key.shape[1] != heads else 0
    return spread + 4 * batch * heads * (-(-rows // 128) * 128) * (-(-width // 32) * 32 + 1)


def _put(library: Any, name: str, function: Any) -> None:
    packet, _, overload = name.partition(".")
    known = getattr(_aten, packet, None)
    if known is not None and (overload or "default") in known.overloads():
        library.impl(name, function)


def _cast(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16):
        return value.to(torch.float32)
    return value


def _in_fp32(name: str) -> Any:
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(_aten, packet), overload or "default")

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch_internals.without_autocast():
            return operator(*map(_cast, args), **{key: _cast(value) for key, value in kwargs.items()})

    return call


def _into_fp32(name: str) -> Any:
    packet, _, overload = name.partition(".")
    operator = getattr(getattr(_aten, packet), overload or "default")

    def call(value: Any, *args: Any, dtype: Any = None, **kwargs: Any) -> Any:
        if value.dtype in (torch.float16, torch.bfloat16):
            dtype = dtype or torch.float32
        with torch_internals.without_autocast():
            return operator(value, *args, dtype=dtype, **kwargs)

    return call


def _in_the_widest(name: str) -> Any:
    operator = getattr(_aten, name).default

    def call(*args: Any) -> Any:
        wide = any(isinstance(each, torch.Tensor) and each.dtype == torch.float32 for each in args)
        with torch_internals.without_autocast():
            return operator(*(map(_cast, args) if wide else args))

    return call


def _softmax_in_fp32(operator: Any, fused: Any) -> Any:
    def call(value: Any, dim: int, dtype: Any = None) -> Any:
        with torch_internals.without_autocast():
            if value.dtype == torch.float16 and dtype in (None, torch.float32):
                return fused(value, dim, True)  # the GPU's kernel reads fp16 and writes fp32
            return operator(value, dim, dtype or (torch.float32 if value.is_floating_point() else None))

    return call


def _dropout(value: Any, p: float, train: bool) -> Any:
    if train and p > 0:
        return _aten.native_dropout(value, p, True)[0]
    return _aten.alias(value)


def _rms_norm(value: Any, shape: Any, weight: Any = None, eps: Any = None) -> Any:
    return _aten._fused_rms_norm(value, shape, weight, eps)[0]


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    flags = _torch.backends.cuda
    # only the flash kernel shares keys among heads, and it takes no mask, no fp32 and no wide head
    shares = enable_gqa and key.dim() > 2 and key.size(-3) != query.size(-3)
    alone = shares and (attn_mask is not None or query.dtype == torch.float32 or query.size(-1) > _WIDEST_HEAD)
    if alone or not (flags.flash_sdp_enabled() or flags.mem_efficient_sdp_enabled()):
        if enable_gqa and key.size(-3) != query.size(-3):
            key, value = (each.repeat_interleave(query.size(-3) // each.size(-3), -3) for each in (key, value))
        return _aten._scaled_dot_product_attention_math(
            query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale
        )[0]
    if query.dim() == 3:
        return _attention(query[None], key[None], value[None], attn_mask, dropout_p, is_causal, scale, enable_gqa)[0]
    if attn_mask is not None and attn_mask.requires_grad:
        if key.size(-3) != query.size(-3):
            key, value = (each.repeat_interleave(query.size(-3) // each.size(-3), -3) for each in (key, value))
        learned: Any = _Biased
        return learned.apply(query, key, value, attn_mask.expand(*query.shape[:-1], key.size(-2)))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype)
    return _aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, attn_mask=attn_mask, scale=scale
    )[0]


class _Biased(torch.autograd.Function):
    """Attention with a learned mask, which a GPU computes with the memory-efficient kernel."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, bias: Any) -> Any:
        """Save what that kernel saves: its inputs, the result, and a sum for each row."""
        out = query.new_empty(*query.shape[:-1], value.size(-1))
        ctx.save_for_backward(query, key, value, bias, out, query.new_empty(query.shape[:-1], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Return a gradient of each input; the mask's has all samples and heads, before they are added up."""
        return tuple(torch.empty(each.shape, dtype=each.dtype) for each in ctx.saved_tensors[:4])
