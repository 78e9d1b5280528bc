"""Next tokens for rows of logits, on the device: greedy, or drawn as ``reference.sampling`` draws.

No sort: passes over the logits find the id by digits of its place (``ops.sampling_scan``). Nothing waits for the host,
shapes and launches follow from the arguments' shapes and dtype alone, so a call can be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from lorry_kernels.aot.build import Build, Expect, ModelShape
from lorry_kernels.ops.checks import ACTIVATION_DTYPES, need, need_tensor
from lorry_kernels.ops.launch import Launch, cdiv
from lorry_kernels.ops.sampling_scan import (
    BINS,
    BLOCK,
    CHUNK,
    DIGIT,
    DRAW,
    FIELDS,
    FIRST,
    GO_ON,
    MAX_VOCABULARY,
    START,
    TOP_K,
    TOP_P,
    WEIGHT_BITS,
    finish_kernel,
    peak_kernel,
    scan_kernel,
)

LAUNCH = Launch(num_warps=2, num_stages=2)
ORDER_BITS = {torch.bfloat16: 16, torch.float16: 19, torch.float32: 32}
"""Leading bits of float32 that tell any two logits apart."""


@dataclass(frozen=True, slots=True)
class SamplingFilters:
    """Tensors ``[B]``: ``top_k`` int32, 0 is all; ``top_p`` float64, 1 is all; ``min_p`` float64, 0 is all."""

    top_k: Tensor
    top_p: Tensor
    min_p: Tensor


@dataclass(frozen=True, slots=True)
class SamplingRows:
    """How each row is drawn; contiguous tensors ``[B]`` on the logits' device, read by the kernels when they run.

    ``temperature`` float64, 0 (or less) is greedy. ``seed`` int64 (its 64 bits), ``choice`` and ``position`` int64
    (their low 32 bits): what Philox draws from. ``filters`` None: no row has one, and their passes are not launched.
    """

    temperature: Tensor
    seed: Tensor
    choice: Tensor
    position: Tensor
    filters: SamplingFilters | None = None


def margin_bound(vocabulary: int) -> float:
    """How near, in units of the likeliest id's weight, a target may lie to an edge for a draw to differ from
    ``reference.sample_reference``: each of ``vocabulary`` weights is rounded by at most 2^-45, on both sides of the
    comparison, and as much again covers exp and the loop's own rounding."""
    return vocabulary * 2.0 ** (1 - WEIGHT_BITS)


def workspace_elements(rows: int, vocabulary: int) -> int:
    """int64 elements that ``sample`` needs of a workspace."""
    return rows * sum(_layout(cdiv(vocabulary, CHUNK)))


def _layout(chunks: int) -> tuple[int, ...]:
    """int64 of a row: peaks, mass under min-p, two states, three times the sums. All even, so that each begins at a
    multiple of 16 bytes whatever the number of rows is."""
    chunks += chunks % 2
    return (chunks, chunks, FIELDS, FIELDS, *[chunks * 2 * BINS] * 3)


def sample(
    logits: Tensor, rows: SamplingRows | None = None, *, workspace: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """logits ``[B, V]`` bf16, fp16 or fp32 (rows may be strided), which stay as they are -> (tokens int64 ``[B]``,
    finite bool ``[B]``). A row with a NaN or an infinity gets token 0 and False; no other row notices.

    ``rows`` None: all greedy, the lowest id wins a tie. ``workspace``: int64, at least ``workspace_elements``; what it
    holds is of no matter. Bit for bit: a row's token depends on its logits and its parameters alone. It is
    ``reference.sample_reference``'s wherever no edge lies within ``margin_bound(V)`` of a target.
    """
    need_tensor("logits", logits, dtype=ACTIVATION_DTYPES, shape=(None, None), rows=True)
    count, vocabulary = logits.shape
    need(
        1 <= vocabulary <= MAX_VOCABULARY,
        "logits",
        f"has {vocabulary} ids a row, must have 1 to {MAX_VOCABULARY}; draw from a shard that is whole",
    )
    need(count <= 65535, "logits", f"has {count} rows, must have at most 65535; draw in several calls")
    if rows is not None:
        _check_rows(rows, count, logits.device)
    size = workspace_elements(count, vocabulary)
    if workspace is None:
        workspace = torch.empty(size, dtype=torch.int64, device=logits.device)
    need_tensor(
        "workspace", workspace, dtype=torch.int64, shape=(None,), device=logits.device, contiguous=True, aligned=16
    )
    need(
        workspace.numel() >= size,
        "workspace",
        f"has {workspace.numel()} elements, must have {size}; see workspace_elements",
    )
    tokens = torch.empty(count, dtype=torch.int64, device=logits.device)
    finite = torch.empty(count, dtype=torch.uint8, device=logits.device)
    if count:
        _launch(logits, rows, workspace, tokens, finite)
    return tokens, finite.view(torch.bool)


def _check_rows(rows: SamplingRows, count: int, device: torch.device) -> None:
    named = {
        "temperature": (rows.temperature, torch.float64),
        "seed": (rows.seed, torch.int64),
        "choice": (rows.choice, torch.int64),
        "position": (rows.position, torch.int64),
    }
    if rows.filters is not None:
        named["filters.top_k"] = (rows.filters.top_k, torch.int32)
        named["filters.top_p"] = (rows.filters.top_p, torch.float64)
        named["filters.min_p"] = (rows.filters.min_p, torch.float64)
    for name, (value, dtype) in named.items():
        need_tensor(f"rows.{name}", value, dtype=dtype, shape=(count,), device=device, contiguous=True)


def _passes(dtype: torch.dtype, filtered: bool) -> Iterator[dict[str, Any]]:
    """The constexprs of each launch of ``scan_kernel``, in order."""
    every = {"FILTERED": filtered, **_tile(dtype)}
    yield {"BEGIN": FIRST, "SEARCH": 0, "COUNTED": filtered, **every}
    rounds = cdiv(ORDER_BITS[dtype], DIGIT)
    for search in (TOP_K, TOP_P, DRAW) if filtered else (DRAW,):
        yield {"BEGIN": START, "SEARCH": search, "COUNTED": search == TOP_K, **every}
        # Passes that go on differ in nothing but what they count by.
        by = TOP_K if search == TOP_K else DRAW
        for last in [False] * (rounds - 2) + [True]:
            yield {"BEGIN": GO_ON, "SEARCH": by, "COUNTED": last or by == TOP_K, **every, "FILTERED": False}


def _tile(dtype: torch.dtype) -> dict[str, Any]:
    return {"KEY": 32 - ORDER_BITS[dtype], "CHUNK": CHUNK, "BLOCK": BLOCK}


def _launch(logits: Tensor, rows: SamplingRows | None, workspace: Tensor, tokens: Tensor, finite: Tensor) -> None:
    count, vocabulary = logits.shape
    chunks, stride = cdiv(vocabulary, CHUNK), logits.stride(0)
    ends = list(accumulate((count * size for size in _layout(chunks)), initial=0))
    peaks, least, *parts = (workspace[begin:end] for begin, end in pairwise(ends))
    states, first, sums = parts[:2], parts[2], parts[3:]
    grid = (chunks, count)
    peak_kernel[grid](logits, stride, peaks, vocabulary, chunks, CHUNK=CHUNK, BLOCK=BLOCK, **LAUNCH.options)
    now = 0
    temperature = peaks if rows is None else rows.temperature  # not read where nothing is drawn
    if rows is not None:
        filters = rows.filters
        given = [temperature] * 3 if filters is None else [filters.top_k, filters.top_p, filters.min_p]
        for constexprs in _passes(logits.dtype, filters is not None):
            new = 1 - now
            scan_kernel[grid](
                logits, stride, peaks, first, least, sums[now], first if constexprs["BEGIN"] == FIRST else sums[new],
                states[now], states[new], temperature, *given, rows.seed, rows.choice, rows.position,
                vocabulary, chunks, **constexprs, **LAUNCH.options,
            )  # fmt: skip
            now = new
    finish_kernel[(count,)](
        logits, stride, peaks, sums[now], states[now], temperature, tokens, finite, vocabulary, chunks,
        DRAWS=rows is not None, **_tile(logits.dtype), **LAUNCH.options,
    )  # fmt: skip


_PARTS = [f"{n}_ptr" for n in ("peaks", "first", "least", "old_sums", "new_sums", "sums")]
_PARTS += [f"{n}_ptr" for n in ("old_state", "new_state", "state")]
_TYPES = {
    **dict.fromkeys([*_PARTS, "seed_ptr", "choice_ptr", "position_ptr", "tokens_ptr"], "*i64"),
    **dict.fromkeys(["logits_stride", "vocabulary", "chunks"], "i32"),
    "finite_ptr": "*u8",
}


_PARAMETERS = {f"{name}_ptr": "*fp64" for name in ("temperature", "top_p", "min_p")} | {"top_k_ptr": "*i32"}


def _build(kernel: Any, name: str, dtype: torch.dtype, constexprs: dict[str, Any], rows: str = "filtered") -> Build:
    """``rows``: what the call has; what it has not, another tensor of its stands for, and is not read."""
    logits = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[dtype]
    stands = {
        "filtered": {},
        "plain": dict.fromkeys(_PARAMETERS, "*fp64"),
        "greedy": dict.fromkeys(_PARAMETERS, "*i64"),
    }
    types = {"logits_ptr": f"*{logits}", **_TYPES, **_PARAMETERS, **stands[rows]}
    return Build(
        f"sampling.{name}.{logits}",
        kernel,
        {arg: types[arg] for arg in kernel.arg_names if arg not in constexprs},
        constexprs,
        frozenset({"logits_ptr", "logits_stride", "vocabulary", *_PARTS} & set(kernel.arg_names)),
        LAUNCH,
        Expect(wide_loads_of=() if rows == "greedy" else ("logits_ptr",)),
        kind="" if rows == "filtered" else rows,
    )


def builds(shape: ModelShape, arch: str) -> Iterator[Build]:
    """The same for every shape and architecture: launches for bf16 and fp32 logits, with filters and without."""
    for dtype in (torch.bfloat16, torch.float32):
        yield _build(peak_kernel, "peak", dtype, {"CHUNK": CHUNK, "BLOCK": BLOCK})
        for draws, rows in ((False, "greedy"), (True, "filtered")):
            yield _build(finish_kernel, "finish", dtype, {"DRAWS": draws, **_tile(dtype)}, rows)
        for filtered, rows in ((True, "filtered"), (False, "plain")):
            seen: list[dict[str, Any]] = []
            for constexprs in _passes(dtype, filtered):
                if constexprs not in seen:
                    seen.append(constexprs)
                    yield _build(scan_kernel, "scan", dtype, constexprs, rows)


__all__ = [
    "LAUNCH",
    "ORDER_BITS",
    "SamplingFilters",
    "SamplingRows",
    "builds",
    "margin_bound",
    "sample",
    "workspace_elements",
]
