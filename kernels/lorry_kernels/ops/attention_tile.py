"""One tile of keys and values met by a block of query rows: the step that decode and prefill share.

Online softmax after Milakov and Gimelshein (2018) and FlashAttention (Dao and others, 2022), in powers of two. A tile
that holds no key of a row leaves that row's state bit for bit as it was, so a row's result does not depend on the rows
that share its block.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def pages_of(
    table_row: tl.tensor,
    start: tl.tensor,
    low: tl.tensor,
    end: tl.tensor,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
) -> Any:
    """Page ids of the keys ``start .. start + TILE - 1``: one where a page holds them all, else ``[TILE]``, 0 for those
    outside ``low .. end - 1``, whose table entries are not read."""
    if PAGE % TILE == 0:
        pages = tl.load(table_row + start // PAGE, mask=start < end, other=0)
    else:
        position = start + tl.arange(0, TILE)
        pages = tl.load(table_row + position // PAGE, mask=(position >= low) & (position < end), other=0)
    return pages


@triton.jit
def attend(
    queries: tl.tensor,
    state: tl.tensor,
    keys_at: tl.tensor,
    values_at: tl.tensor,
    table_row: tl.tensor,
    start: tl.tensor,
    low: tl.tensor,
    end: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    log2_scale: tl.tensor,
    stride_page: tl.tensor,
    stride_token: tl.tensor,
    PAGE: tl.constexpr,
    TILE: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    MASKED: tl.constexpr,
) -> Any:
    """The state ``(acc [M, BLOCK_D], peak [M], total [M], pages)`` after the keys ``start .. start + TILE - 1``.

    ``pages`` are ``pages_of`` the tile, and of the next tile in what is returned: known one step before they are
    needed, they cost the software pipeline no stage.
    queries ``[M, BLOCK_D]``; ``keys_at`` and ``values_at`` point at the KV head in page 0; ``start`` is a multiple of
    TILE. MASKED: keys outside ``low .. end - 1`` are not read (values count as zeros), and row m sees those of
    ``first[m] .. last[m]``. Not MASKED: every row sees every key of the tile.
    """
    acc, peak, total, pages = state
    column = tl.arange(0, BLOCK_D)
    position = start + tl.arange(0, TILE)
    alive = (position >= low) & (position < end)
    at = pages.to(tl.int64) * stride_page + (position % PAGE).to(tl.int64) * stride_token
    key_at = keys_at + at[:, None] + column[None, :]
    value_at = values_at + at[:, None] + column[None, :]
    inside = (column < D)[None, :]
    if MASKED:
        # 0 * NaN is NaN: values behind the end must be zeros, whatever an earlier owner left there.
        keys = tl.load(key_at, mask=alive[:, None] & inside, other=0.0)
        values = tl.load(value_at, mask=alive[:, None] & inside, other=0.0)
    elif D == BLOCK_D:
        keys = tl.load(key_at)
        values = tl.load(value_at)
    else:
        keys = tl.load(key_at, mask=inside, other=0.0)
        values = tl.load(value_at, mask=inside, other=0.0)
    scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
    if MASKED:
        seen = alive[None, :] & (position[None, :] >= first[:, None]) & (position[None, :] <= last[:, None])
        scores = tl.where(seen, scores, -float("inf"))
    high = tl.maximum(peak, tl.max(scores, 1))
    # A row that has seen no key has the peak -inf, and -inf - -inf is NaN.
    safe = tl.where(high == -float("inf"), 0.0, high)
    # The product is fused in both variants, by name, so that a tile weighs the same in either.
    weights = tl.math.exp2(tl.fma(scores, log2_scale, -(safe * log2_scale)[:, None]))
    shrink = tl.math.exp2((peak - safe) * log2_scale)
    total = total * shrink + tl.sum(weights, 1)
    acc = tl.dot(weights.to(values.dtype), values, acc * shrink[:, None], input_precision="ieee")
    return acc, high, total, pages_of(table_row, start + TILE, low, end, PAGE, TILE)


__all__ = ["attend", "pages_of"]
