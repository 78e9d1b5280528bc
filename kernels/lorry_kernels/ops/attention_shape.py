"""What decode and prefill check of a call, and the tiles that they take. No result of a row depends on the batch: tiles
follow the head's size and the architecture alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from lorry_kernels.ops.checks import ACTIVATION_DTYPES, need, need_tensor
from lorry_kernels.tuning import AttentionConfig, lookup

HEAD_DIMS = (16, 32, 64, 80, 96, 128, 192, 256)
MOST_GROUP = 16
LANE = 16
"""Strides are multiples of so many elements and addresses of so many bytes: what the kernels' hints claim."""

SPLIT_TOKENS = 512
"""Keys of one split. Of fixed size, so that the way a row is cut depends on its own length only."""

_LOG2_E = math.log2(math.e)


def decode_tile(arch: str, head_dim: int) -> AttentionConfig:
    """Of the tuning table: 16 rows, of which a group's query heads are the first."""
    return lookup(arch, "attention", head_dim, 0, 0, "decode")


def prefill_tile(arch: str, head_dim: int) -> AttentionConfig:
    return lookup(arch, "attention", head_dim, 0, 0, "prefill")


def stride(tensor: Tensor, dim: int) -> int:
    """0 where there is nothing to step over: torch lets such a stride be anything, the hints do not."""
    return tensor.stride(dim) if tensor.shape[dim] > 1 else 0


def check_rows(
    argument: str, value: object, like: Tensor | None, dim: int, heads: int | None, tokens: int | None
) -> Tensor:
    """``[tokens, heads, dim]`` rows of queries, keys, values or results, with the strides that the hints claim."""
    rows = need_tensor(
        argument,
        value,
        dtype=ACTIVATION_DTYPES if like is None else like.dtype,
        shape=(tokens, heads, dim),
        device=None if like is None else like.device,
        rows=True,
        aligned=LANE,
    )
    _check_strides(argument, rows)
    return rows


def check_pages(k_pages: object, v_pages: object) -> tuple[Tensor, Tensor]:
    """Two views ``[P, KVH, page, D]`` of one layout."""
    keys = need_tensor("k_pages", k_pages, dtype=ACTIVATION_DTYPES, shape=(None,) * 4, rows=True, aligned=LANE)
    dim, page = keys.shape[3], keys.shape[2]
    need(dim in HEAD_DIMS, "k_pages", f"has a head dim of {dim}, must be one of {', '.join(map(str, HEAD_DIMS))}")
    need(
        page >= LANE and page % LANE == 0,
        "k_pages",
        f"has pages of {page} tokens, must be a multiple of {LANE}; set the page size of the KV arena",
    )
    need(
        keys.shape[0] > 0 and keys.shape[1] > 0,
        "k_pages",
        f"has shape {list(keys.shape)}, must have pages and KV heads",
    )
    _check_strides("k_pages", keys)
    values = need_tensor(
        "v_pages", v_pages, dtype=keys.dtype, shape=keys.shape, device=keys.device, rows=True, aligned=LANE
    )
    need(
        _strides(values) == _strides(keys),
        "v_pages",
        f"has strides {list(values.stride())}, must be k_pages' {list(keys.stride())}; cut both from one arena",
    )
    return keys, values


def check_group(heads: int, kv_heads: int) -> int:
    """Query heads of a KV head."""
    need(
        heads % kv_heads == 0 and 1 <= heads // kv_heads <= MOST_GROUP,
        "q",
        f"has {heads} heads for {kv_heads} KV heads, must be 1 to {MOST_GROUP} whole times as many",
    )
    return heads // kv_heads


def check_numbers(argument: str, value: object, shape: tuple[int | None, ...], device: torch.device) -> Tensor:
    """int32, contiguous: lengths, starts, block tables."""
    return need_tensor(argument, value, dtype=torch.int32, shape=shape, device=device, contiguous=True)


def log2_scale(scale: float | None, head_dim: int) -> float:
    """What scores are multiplied by for a softmax in powers of two; 1 / sqrt(head_dim) unless a scale is given."""
    value = 1.0 / math.sqrt(head_dim) if scale is None else scale
    need(math.isfinite(value) and value > 0, "scale", f"is {value}, must be finite and above 0")
    return value * _LOG2_E


def check_window(window: int | None) -> int:
    """Keys that a query sees, its own included; 0 for all."""
    need(window is None or window > 0, "window", f"is {window}, must be above 0; None for no window")
    return 0 if window is None else window


def _check_strides(argument: str, value: Tensor) -> None:
    steps = _strides(value)
    need(
        all(step % LANE == 0 for step in steps),
        argument,
        f"has strides {list(value.stride())}, all but the last must be multiples of {LANE}; pad the buffer",
    )


def _strides(value: Tensor) -> tuple[int, ...]:
    return tuple(stride(value, dim) for dim in range(value.dim() - 1))


__all__ = [
    "HEAD_DIMS",
    "LANE",
    "MOST_GROUP",
    "SPLIT_TOKENS",
    "check_group",
    "check_numbers",
    "check_pages",
    "check_rows",
    "check_window",
    "decode_tile",
    "log2_scale",
    "prefill_tile",
    "stride",
]
