"""The kernels of ``ops.sampling``: rows of logits, cut into chunks of CHUNK ids, one program for a chunk of a row.

A row's ids stand from likeliest to least, ties by id. ``_order`` maps a logit to 32 bits that grow the other way. The
id at a given count or mass is found by passes that count and weigh the ids up to BINS bounds: the first at steps of two
temperatures below the peak, the others at equal steps through the range that is left, until it is one logit. (A radix
select: Alabi, Blanchard, Gordon, Steinbach, "Fast k-selection algorithms for graphics processing units", 2012, with
mass beside the counts.) After the first pass few ids are within the range, and blocks without one cost a load.

A weight is exp((x - peak) / temperature) in float64, rounded to a whole number of 2^-44. Sums are integers, so they are
exact and no order of adding changes them: not the number of programs, nor the batch.
"""

from __future__ import annotations

import triton
import triton.language as tl

CHUNK = 4096
BLOCK = 512
DIGIT = 4
BINS = 1 << DIGIT
WEIGHT_BITS = 44
MAX_VOCABULARY = 1 << 18
"""A row's mass stays below 2^(44 + 18); an id takes 20 bits of a packed peak."""
CHUNKS = MAX_VOCABULARY // CHUNK

FIELDS = 8
"""int64 of a row's state: the range's first and last order, mass and count before it, what is looked for, mass of the
ids that are allowed, and whether the row is looking."""

FIRST, START, GO_ON = 0, 1, 2
"""What a pass begins with: nothing; a new search, from the first pass's sums; the bin that the pass before found."""
TOP_K, TOP_P, DRAW = 1, 2, 3
"""What a search looks for: the k-th id, the id that completes top-p's mass, the id that is drawn."""

_START = tl.constexpr(START)
_GO_ON = tl.constexpr(GO_ON)
_TOP_K = tl.constexpr(TOP_K)
_TOP_P = tl.constexpr(TOP_P)
_DRAW = tl.constexpr(DRAW)
_BINS = tl.constexpr(BINS)
_DIGIT = tl.constexpr(DIGIT)
_FIELDS = tl.constexpr(FIELDS)
_CHUNKS = tl.constexpr(CHUNKS)
_ID_BITS = tl.constexpr(20)
_ID_MASK = tl.constexpr((1 << 20) - 1)
_UNIT = tl.constexpr(float(1 << WEIGHT_BITS))
_STEP = tl.constexpr(2.0)
_LOWEST = tl.constexpr(-3.4028234663852886e38)
_ABSENT = tl.constexpr((1 << 63) - 1)


@triton.jit
def _order(x: tl.tensor) -> tl.tensor:
    """float32 -> uint32 that grows as x falls; both zeros are one."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    rising = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    return (~rising).to(tl.uint32, bitcast=True) ^ 0x80000000


@triton.jit
def _logit_of(order: tl.tensor) -> tl.tensor:
    """The inverse of ``_order``, for a scalar."""
    rising = ~((order ^ 0x80000000).to(tl.int32, bitcast=True))
    bits = tl.where(rising < 0, rising ^ 0x7FFFFFFF, rising)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _uniform_24(seed: tl.tensor, choice: tl.tensor, position: tl.tensor) -> tl.tensor:
    """The first 24 bits that Philox-4x32-10 draws for them, int64."""
    k0 = (seed & 0xFFFFFFFF).to(tl.uint64)
    k1 = ((seed >> 32) & 0xFFFFFFFF).to(tl.uint64)
    c0 = (position & 0xFFFFFFFF).to(tl.uint64)
    c1 = (choice & 0xFFFFFFFF).to(tl.uint64)
    c2 = c0 & 0
    c3 = c0 & 0
    for _ in tl.static_range(10):
        p0 = c0 * 0xD2511F53
        p1 = c2 * 0xCD9E8D57
        c0 = (p1 >> 32) ^ c1 ^ k0
        c2 = (p0 >> 32) ^ c3 ^ k1
        c1 = p1 & 0xFFFFFFFF
        c3 = p0 & 0xFFFFFFFF
        k0 = (k0 + 0x9E3779B9) & 0xFFFFFFFF
        k1 = (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return (c0 >> 8).to(tl.int64)


@triton.jit(do_not_specialize=["chunks"])
def peak_kernel(
    logits_ptr: tl.tensor, logits_stride: tl.tensor, peaks_ptr: tl.tensor, vocabulary: tl.tensor, chunks: tl.tensor,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """peaks ``[B, chunks]``: (order << 20 | id) of the likeliest id of a chunk, -1 where a logit is not finite."""
    chunk, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    best = tl.full([BLOCK], _ABSENT, tl.int64)
    broken = tl.zeros([BLOCK], tl.int32)
    for begin in range(chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, vocabulary), BLOCK):
        ids = begin + tl.arange(0, BLOCK)
        real = ids < vocabulary
        x = tl.load(logits_ptr + row * logits_stride + ids, mask=real, other=0.0).to(tl.float32)
        broken |= (~(tl.abs(x) < float("inf"))).to(tl.int32)
        packed = (_order(x).to(tl.int64) << _ID_BITS) | ids
        best = tl.minimum(best, tl.where(real, packed, _ABSENT))
    found = tl.where(tl.max(broken, 0) > 0, -1, tl.min(best, 0))
    tl.store(peaks_ptr + row * chunks + chunk, found)


@triton.jit
def _peak_of(peaks_ptr: tl.tensor, row: tl.tensor, chunks: tl.tensor) -> tl.tensor:
    at = tl.arange(0, _CHUNKS)
    return tl.min(tl.load(peaks_ptr + row * chunks + at, mask=at < chunks, other=_ABSENT), 0)


@triton.jit
def _sums(sums_ptr: tl.tensor, row: tl.tensor, chunks: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """(mass, count) up to each bound, over all chunks: int64 ``[BINS]``. A chunk's masses stand before its counts."""
    at = tl.arange(0, _CHUNKS)[:, None]
    where = sums_ptr + (row * chunks + at) * 2 * _BINS + tl.arange(0, _BINS)[None, :]
    mass = tl.sum(tl.load(where, mask=at < chunks, other=0), 0)
    count = tl.sum(tl.load(where + _BINS, mask=at < chunks, other=0), 0)
    return mass, count


@triton.jit
def _at(values: tl.tensor, index: tl.tensor) -> tl.tensor:
    """One of ``values`` ``[BINS]``; 0 at -1."""
    return tl.sum(tl.where(tl.arange(0, _BINS) == index, values, 0), 0)


@triton.jit
def _bin_of(
    mass: tl.tensor, count: tl.tensor, before: tl.tensor, passed: tl.tensor, want: tl.tensor, BY_COUNT: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """The first bin that reaches ``want``."""
    reached = passed + count if BY_COUNT else before + mass
    return tl.minimum(tl.sum((reached < want).to(tl.int32), 0), _BINS - 1)


@triton.jit
def _first_bounds(top: tl.tensor, temperature: tl.tensor, KEY: tl.constexpr) -> tl.tensor:
    """The last order of each bin of the first pass, int64 ``[BINS]``, never falling; the last bin has all the rest."""
    bins = tl.arange(0, _BINS)
    edges = top - (bins + 1).to(tl.float64) * _STEP * temperature
    edges = tl.maximum(edges, _LOWEST).to(tl.float32)
    return tl.where(bins < _BINS - 1, _order(edges) >> KEY, 0xFFFFFFFF >> KEY).to(tl.int64)


@triton.jit
def _next_bounds(low: tl.tensor, last: tl.tensor) -> tl.tensor:
    """BINS equal parts of the range from ``low`` to ``last``."""
    width = tl.sum(((last - low) >> tl.arange(0, 32) > 0).to(tl.int64), 0)
    shift = tl.maximum(width - _DIGIT, 0)
    return tl.minimum(low + ((tl.arange(0, _BINS) + 1).to(tl.int64) << shift) - 1, last)


@triton.jit
def _kept_by(mass: tl.tensor, count: tl.tensor, state: tl.tensor, BY_COUNT: tl.constexpr) -> tl.tensor:
    """The mass of the ids up to the one that a search found, from the sums of its last pass, where the range is one
    logit: equal logits have equal weights, so the mass is a multiple of the count."""
    before, passed, want = tl.load(state + 2), tl.load(state + 3), tl.load(state + 4)
    found = _bin_of(mass, count, before, passed, want, BY_COUNT)
    before += _at(mass, found - 1)
    passed += _at(count, found - 1)
    weight = (_at(mass, found) - _at(mass, found - 1)) // tl.maximum(_at(count, found) - _at(count, found - 1), 1)
    number = want - passed if BY_COUNT else (want - before + weight - 1) // tl.maximum(weight, 1)
    return tl.where(tl.load(state + 6) != 0, before + number * weight, tl.load(state + 5))


_COLUMNS = ("temperature_ptr", "top_k_ptr", "top_p_ptr", "min_p_ptr", "seed_ptr", "choice_ptr", "position_ptr")
"""A number a row. They may be columns of one buffer: wherever they begin, it is the same kernel."""


@triton.jit(do_not_specialize=["chunks", *_COLUMNS])
def scan_kernel(
    logits_ptr: tl.tensor, logits_stride: tl.tensor, peaks_ptr: tl.tensor, first_ptr: tl.tensor, least_ptr: tl.tensor,
    old_sums_ptr: tl.tensor, new_sums_ptr: tl.tensor, old_state_ptr: tl.tensor, new_state_ptr: tl.tensor,
    temperature_ptr: tl.tensor, top_k_ptr: tl.tensor, top_p_ptr: tl.tensor, min_p_ptr: tl.tensor, seed_ptr: tl.tensor,
    choice_ptr: tl.tensor, position_ptr: tl.tensor, vocabulary: tl.tensor, chunks: tl.tensor, BEGIN: tl.constexpr,
    SEARCH: tl.constexpr, FILTERED: tl.constexpr, COUNTED: tl.constexpr, KEY: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """One pass: settles what the pass before it found (in every program alike), then counts and weighs."""
    chunk, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    temperature = tl.load(temperature_ptr + row)
    peak = _peak_of(peaks_ptr, row, chunks)
    looking = (temperature > 0) & (peak >= 0)
    top = _logit_of((peak >> _ID_BITS).to(tl.uint32)).to(tl.float64)
    low = tl.full([], 0, tl.int64)
    bounds = tl.zeros([_BINS], tl.int64)
    if looking:
        state = new_state_ptr + row * _FIELDS
        if BEGIN == 0:
            bounds = _first_bounds(top, temperature, KEY)
        if BEGIN == _START:
            mass, count = _sums(first_ptr, row, chunks)
            kept = _at(mass, _BINS - 1)
            if SEARCH == _TOP_K:
                want = tl.load(top_k_ptr + row).to(tl.int64)
                looking = (want > 0) & (want < vocabulary)
            elif SEARCH == _TOP_P:
                last_mass, last_count = _sums(old_sums_ptr, row, chunks)
                kept = _kept_by(last_mass, last_count, old_state_ptr + row * _FIELDS, True)
                share = tl.load(top_p_ptr + row)
                want = tl.ceil(share * kept.to(tl.float64)).to(tl.int64)
                want = tl.minimum(tl.maximum(want, 1), kept)
                looking = share < 1.0
            else:
                if FILTERED:
                    last_mass, last_count = _sums(old_sums_ptr, row, chunks)
                    kept = _kept_by(last_mass, last_count, old_state_ptr + row * _FIELDS, False)
                    at = tl.arange(0, _CHUNKS)
                    least = tl.sum(tl.load(least_ptr + row * chunks + at, mask=at < chunks, other=0), 0)
                    kept = tl.minimum(kept, least)
                drawn = _uniform_24(tl.load(seed_ptr + row), tl.load(choice_ptr + row), tl.load(position_ptr + row))
                # floor(drawn * kept / 2^24), which would not fit one product, and 1: the first mass beyond it.
                want = drawn * (kept >> 24) + ((drawn * (kept & 0xFFFFFF)) >> 24) + 1
            found = _bin_of(mass, count, 0, 0, want, SEARCH == _TOP_K)
            edges = _first_bounds(top, temperature, KEY)
            low = tl.where(found > 0, _at(edges, found - 1) + 1, 0)
            last = _at(edges, found)
            before = _at(mass, found - 1)
            passed = _at(count, found - 1)
        if BEGIN == _GO_ON:
            old = old_state_ptr + row * _FIELDS
            low, last = tl.load(old), tl.load(old + 1)
            before, passed, want = tl.load(old + 2), tl.load(old + 3), tl.load(old + 4)
            kept = tl.load(old + 5)
            looking = tl.load(old + 6) != 0
            if looking:
                mass, count = _sums(old_sums_ptr, row, chunks)
                found = _bin_of(mass, count, before, passed, want, SEARCH == _TOP_K)
                edges = _next_bounds(low, last)
                low = tl.where(found > 0, _at(edges, found - 1) + 1, low)
                last = _at(edges, found)
                before += _at(mass, found - 1)
                passed += _at(count, found - 1)
        if BEGIN != 0:
            bounds = _next_bounds(low, last)
            if chunk == 0:
                tl.store(state, low)
                tl.store(state + 1, last)
                tl.store(state + 2, before)
                tl.store(state + 3, passed)
                tl.store(state + 4, want)
                tl.store(state + 5, kept)
                tl.store(state + 6, looking.to(tl.int64))
    if looking:
        # Bounded, so that no temperature makes 0 * inf of the peak's own distance.
        rate = 1.0 / tl.maximum(temperature, 1e-200)
        first_order, last_order = low.to(tl.uint32), tl.max(bounds, 0).to(tl.uint32)
        edges = bounds.to(tl.uint32)[:, None]
        mass = tl.zeros([_BINS], tl.int64)
        count = tl.zeros([_BINS], tl.int64)
        least = tl.zeros([BLOCK], tl.int64)
        begin, end = chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, vocabulary)
        place = tl.arange(0, BLOCK)
        logits = logits_ptr + row * logits_stride + place
        following = tl.load(logits + begin, mask=begin + place < end, other=float("-inf"))
        for here in range(begin, end, BLOCK):
            x = following.to(tl.float32)
            coming = here + BLOCK + place < end
            following = tl.load(logits + here + BLOCK, mask=coming, other=float("-inf"))
            order = _order(x) >> KEY
            inside = (here + place < end) & (order >= first_order) & (order <= last_order)
            if tl.max(inside.to(tl.int32), 0) > 0:
                share = tl.exp((x.to(tl.float64) - top) * rate)
                weight = tl.where(inside, (share * _UNIT + 0.5).to(tl.int64), 0)
                if FILTERED and BEGIN == 0:
                    least += tl.where(share >= tl.load(min_p_ptr + row), weight, 0)
                up_to = order[None, :] <= edges
                mass += tl.sum(tl.where(up_to, weight[None, :], 0), 1)
                if COUNTED:
                    count += tl.sum((up_to & inside[None, :]).to(tl.int32), 1)
        sums = new_sums_ptr + (row * chunks + chunk) * 2 * _BINS + tl.arange(0, _BINS)
        tl.store(sums, mass)
        tl.store(sums + _BINS, count)
        if FILTERED and BEGIN == 0:
            tl.store(least_ptr + row * chunks + chunk, tl.sum(least, 0))


@triton.jit(do_not_specialize=["chunks"])
def finish_kernel(
    logits_ptr: tl.tensor, logits_stride: tl.tensor, peaks_ptr: tl.tensor, sums_ptr: tl.tensor, state_ptr: tl.tensor,
    temperature_ptr: tl.tensor, tokens_ptr: tl.tensor, finite_ptr: tl.tensor, vocabulary: tl.tensor, chunks: tl.tensor,
    DRAWS: tl.constexpr, KEY: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """tokens and finite, one program a row."""
    row = tl.program_id(0).to(tl.int64)
    peak = _peak_of(peaks_ptr, row, chunks)
    token = tl.where(peak >= 0, peak & _ID_MASK, 0)
    looking = peak >= 0
    if DRAWS:
        looking = looking & (tl.load(temperature_ptr + row) > 0)
        if looking:
            state = state_ptr + row * _FIELDS
            low, before, passed = tl.load(state), tl.load(state + 2), tl.load(state + 3)
            want = tl.load(state + 4)
            mass, count = _sums(sums_ptr, row, chunks)
            found = _bin_of(mass, count, before, passed, want, False)
            earlier = _at(mass, found - 1)
            many = tl.maximum(_at(count, found) - _at(count, found - 1), 1)
            weight = tl.maximum((_at(mass, found) - earlier) // many, 1)
            # Of the ids that share this logit, in ascending order: the one at this place, counted from 0.
            place = tl.minimum((want - 1 - before - earlier) // weight, many - 1)
            at = tl.arange(0, _CHUNKS)
            counts = sums_ptr + (row * chunks + at) * 2 * _BINS + _BINS + found
            shares = tl.load(counts, mask=at < chunks, other=0)
            shares -= tl.load(counts - 1, mask=(at < chunks) & (found > 0), other=0)
            chunk = tl.sum((tl.cumsum(shares, 0) <= place).to(tl.int32), 0)
            place -= tl.sum(tl.where(at < chunk, shares, 0), 0)
            key = (low + found).to(tl.uint32)
            token = tl.full([], 0, tl.int64)
            for begin in range(chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, vocabulary), BLOCK):
                ids = begin + tl.arange(0, BLOCK)
                real = ids < vocabulary
                x = tl.load(logits_ptr + row * logits_stride + ids, mask=real, other=0.0).to(tl.float32)
                hit = (real & ((_order(x) >> KEY) == key)).to(tl.int32)
                nth = tl.cumsum(hit, 0)
                token += tl.sum(tl.where((hit > 0) & (nth == place + 1), ids, 0), 0)
                place -= tl.sum(hit, 0)
    tl.store(tokens_ptr + row, token)
    tl.store(finite_ptr + row, (peak >= 0).to(tl.uint8))


__all__ = [
    "BINS",
    "BLOCK",
    "CHUNK",
    "DIGIT",
    "DRAW",
    "FIELDS",
    "FIRST",
    "GO_ON",
    "MAX_VOCABULARY",
    "START",
    "TOP_K",
    "TOP_P",
    "WEIGHT_BITS",
    "finish_kernel",
    "peak_kernel",
    "scan_kernel",
]
