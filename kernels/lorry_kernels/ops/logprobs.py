"""The logarithm of one id's probability in each row, and its place.

Chunks of a row are summed apart and merged by their peaks, as in the online softmax (Milakov, Gimelshein, 2018).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from lorry_kernels.aot.build import Build, Expect, ModelShape
from lorry_kernels.ops.checks import ACTIVATION_DTYPES, need, need_tensor
from lorry_kernels.ops.launch import Launch, cdiv

CHUNK = 4096
BLOCK = 1024
LAUNCH = Launch(4, 2)
MAX_CHUNKS = 64

_LOWEST = tl.constexpr(-3.4028234663852886e38)


@triton.jit(do_not_specialize=["chunks"])
def _score_kernel(
    own_ptr: tl.tensor, logits_ptr: tl.tensor, logits_stride: tl.tensor, tokens_ptr: tl.tensor, parts_ptr: tl.tensor,
    before_ptr: tl.tensor, vocabulary: tl.tensor, chunks: tl.tensor,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """Of one chunk of a row: parts ``[B, chunks, 2]`` (peak, sum of exp(x - peak)), before ``[B, chunks]`` int32 (ids
    that stand before the row's token). ``own_ptr``: the logits again, for the one that is read alone."""
    chunk, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    token = tl.load(tokens_ptr + row)
    logits = logits_ptr + row * logits_stride
    known = (token >= 0) & (token < vocabulary)
    own = tl.load(own_ptr + row * logits_stride + token, mask=known, other=0.0).to(tl.float32)
    begin, end = chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, vocabulary)
    place = tl.arange(0, BLOCK)
    peaks = tl.full([BLOCK], _LOWEST, tl.float32)
    ahead = tl.zeros([BLOCK], tl.int32)
    for here in range(begin, end, BLOCK):
        ids = here + place
        x = tl.load(logits + ids, mask=ids < end, other=float("-inf")).to(tl.float32)
        peaks = tl.maximum(peaks, x)
        ahead += ((ids < end) & ((x > own) | ((x == own) & (ids < token)))).to(tl.int32)
    peak = tl.max(peaks, 0)
    total = tl.zeros([BLOCK], tl.float32)
    for here in range(begin, end, BLOCK):
        ids = here + place
        x = tl.load(logits + ids, mask=ids < end, other=float("-inf")).to(tl.float32)
        total += tl.where(ids < end, tl.exp(x - peak), 0.0)
    at = row * chunks + chunk
    tl.store(parts_ptr + 2 * at, peak)
    tl.store(parts_ptr + 2 * at + 1, tl.sum(total, 0))
    tl.store(before_ptr + at, tl.sum(ahead, 0))


@triton.jit(do_not_specialize=["chunks"])
def _merge_kernel(
    own_ptr: tl.tensor, logits_stride: tl.tensor, tokens_ptr: tl.tensor, parts_ptr: tl.tensor,
    before_ptr: tl.tensor, logprobs_ptr: tl.tensor, ranks_ptr: tl.tensor, vocabulary: tl.tensor, chunks: tl.tensor,
    CHUNKS: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    token = tl.load(tokens_ptr + row)
    known = (token >= 0) & (token < vocabulary)
    own = tl.load(own_ptr + row * logits_stride + token, mask=known, other=0.0).to(tl.float32)
    chunk = tl.arange(0, CHUNKS)
    at, real = row * chunks + chunk, chunk < chunks
    peaks = tl.load(parts_ptr + 2 * at, mask=real, other=_LOWEST)
    sums = tl.load(parts_ptr + 2 * at + 1, mask=real, other=0.0)
    peak = tl.max(peaks, 0)
    total = tl.sum(tl.where(real, sums * tl.exp(peaks - peak), 0.0), 0)
    before = tl.sum(tl.load(before_ptr + at, mask=real, other=0), 0)
    tl.store(logprobs_ptr + row, tl.where(known, own - peak - tl.log(total), float("nan")))
    tl.store(ranks_ptr + row, tl.where(known, before + 1, 0))


def logprobs(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """logits ``[B, V]`` bf16, fp16 or fp32 (rows may be strided), finite; tokens int64 ``[B]`` -> (natural logarithms
    of the tokens' probabilities, float32 ``[B]``; their ranks, int32 ``[B]``: 1 and the ids that stand before, ties by
    id).

    An id that the row does not have gets NaN and 0. What a row that is not finite gets is not defined; no other row
    notices. float32 inside; a row's result depends on the row and its token alone, bit for bit. Capturable in a CUDA
    graph. Raises TypeError or ValueError by the argument's name.
    """
    need_tensor("logits", logits, dtype=ACTIVATION_DTYPES, shape=(None, None), rows=True)
    count, vocabulary = logits.shape
    most = CHUNK * MAX_CHUNKS
    need(1 <= vocabulary <= most, "logits", f"has {vocabulary} ids a row, must have 1 to {most}; pass a whole row")
    need(count <= 65535, "logits", f"has {count} rows, must have at most 65535; score in several calls")
    need_tensor("tokens", tokens, dtype=torch.int64, shape=(count,), device=logits.device, contiguous=True)
    chunks, device = cdiv(vocabulary, CHUNK), logits.device
    parts = torch.empty(count, chunks, 2, dtype=torch.float32, device=device)
    before = torch.empty(count, chunks, dtype=torch.int32, device=device)
    found = torch.empty(count, dtype=torch.float32, device=device)
    ranks = torch.empty(count, dtype=torch.int32, device=device)
    if count:
        rows = (logits.stride(0), tokens, parts, before)
        _score_kernel[(chunks, count)](
            logits, logits, *rows, vocabulary, chunks, **_score_constexprs(), **LAUNCH.options
        )
        _merge_kernel[(count,)](logits, *rows, found, ranks, vocabulary, chunks, CHUNKS=MAX_CHUNKS, **LAUNCH.options)
    return found, ranks


def _score_constexprs() -> dict[str, Any]:
    return {"CHUNK": CHUNK, "BLOCK": BLOCK}


def builds(shape: ModelShape, arch: str) -> Iterator[Build]:
    """The same for every shape and architecture."""
    types = {"logits_stride": "i32", "tokens_ptr": "*i64", "parts_ptr": "*fp32", "before_ptr": "*i32"}
    types |= {"logprobs_ptr": "*fp32", "ranks_ptr": "*i32", "vocabulary": "i32", "chunks": "i32"}
    divisible = {*types, "logits_ptr", "own_ptr"} - {"chunks", "tokens_ptr"}
    for dtype in ("bf16", "fp32"):
        for kernel, constexprs, wide in (
            (_score_kernel, _score_constexprs(), ("logits_ptr",)),
            (_merge_kernel, {"CHUNKS": MAX_CHUNKS}, ()),
        ):
            known = {"own_ptr": f"*{dtype}", "logits_ptr": f"*{dtype}", **types}
            signature = {name: known[name] for name in kernel.arg_names if name in known}
            yield Build(
                f"logprobs.{kernel.fn.__name__.removesuffix('_kernel')}.{dtype}",
                kernel,
                signature,
                constexprs,
                frozenset(divisible & set(signature)),
                LAUNCH,
                Expect(wide_loads_of=wide),
            )


__all__ = ["builds", "logprobs"]
