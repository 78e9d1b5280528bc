"""Multi-LoRA on the CPU against the obvious loop in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lorry_kernels.cpu import lora_apply, route
from lorry_kernels.reference import lora_reference

ROWS = 64  # arena rows of the small cases


def arena(slices: tuple[int, ...], k: int, rows: int = ROWS, seed: int = 0) -> tuple[torch.Tensor, list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(len(slices), rows, k, generator=generator) / k**0.5
    return a, [torch.randn(rows, n, generator=generator) for n in slices]


def check(
    parts: list[tuple[int, int, tuple[int, ...]]], slices: tuple[int, ...], k: int, rows: int = ROWS
) -> torch.Tensor:
    a, b = arena(slices, k, rows)
    tokens = parts[-1][1]
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(tokens, k, generator=generator)
    y = torch.randn(tokens, sum(slices), generator=generator)
    own = [row for begin, end, row in parts for _ in range(end - begin)]
    want = lora_reference(y, x, a, b, own)
    got = y.clone()
    lora_apply(got, x, a, b, route(parts))
    torch.testing.assert_close(got.double(), want, atol=2e-4, rtol=1e-4)
    for t, rows_of_t in enumerate(own):
        if not rows_of_t:
            assert torch.equal(got[t], y[t]), "a base row was touched"
    return got


@st.composite
def batches(draw: st.DrawFn) -> list[tuple[int, int, tuple[int, ...]]]:
    """Parts of 1 to 40 tokens over adapters of ranks 1 to 24 on scattered, disjoint rows, and base parts."""
    order = draw(st.permutations(range(ROWS)))
    adapters: list[tuple[int, ...]] = [()]
    used = 0
    for rank in draw(st.lists(st.sampled_from([1, 2, 3, 8, 15, 16, 17, 24]), max_size=4)):
        if used + rank > ROWS:
            break
        scattered = draw(st.booleans())
        adapters.append(tuple(order[used : used + rank]) if scattered else tuple(sorted(order[used : used + rank])))
        used += rank
    parts = []
    at = 0
    for _ in range(draw(st.integers(1, 8))):
        length = draw(st.sampled_from([1, 1, 1, 2, 5, 16, 33, 40]))
        parts.append((at, at + length, draw(st.sampled_from(adapters))))
        at += length
    return parts


@settings(max_examples=60, deadline=None)
@given(parts=batches(), slices=st.sampled_from([(16,), (48, 16, 16), (20, 64)]), k=st.sampled_from([16, 48, 64]))
def test_any_mix_equals_the_loop(
    parts: list[tuple[int, int, tuple[int, ...]]], slices: tuple[int, ...], k: int
) -> None:
    check(parts, slices, k)


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([(i, i + 1, tuple(range(8 * i, 8 * i + 8))) for i in range(8)], id="one token per adapter"),
        pytest.param([(i, i + 1, tuple(range(16))) for i in range(8)], id="all share one"),
        pytest.param([(0, 1, (0, 1)), (1, 2, ()), (2, 3, (2, 3)), (3, 4, ())], id="interleaved with the base"),
        pytest.param([(0, 1, (0,)), (1, 2, (1,)), (2, 3, (2,)), (3, 256, tuple(range(3, 19)))], id="skewed"),
        pytest.param([(0, 5, ())], id="all base"),
        pytest.param([(0, 1, tuple(range(0, 64, 2))), (1, 2, tuple(range(1, 64, 2)))], id="interleaved rows"),
    ],
)
def test_named_mixes(parts: list[tuple[int, int, tuple[int, ...]]]) -> None:
    check(parts, (48, 16, 16), 48)


def test_real_widths() -> None:
    parts = [(i, i + 1, tuple(range(16 * i, 16 * i + 16))) for i in range(8)] + [(8, 90, tuple(range(16)))]
    check(parts, (1536, 1536), 576, rows=128)


def test_decode_rows_of_distinct_adapters_are_blocks_and_long_parts_are_segments() -> None:
    decode = [(i, i + 1, tuple(range(16 * i, 16 * i + 16))) for i in range(8)]
    (block,) = route(decode).blocks
    assert (block.unit, block.count, block.width) == (16, 8, 1)
    assert block.gather is block.keep is block.target is None, "nothing is gathered where all stands in order"
    prefill = [(0, 100, (0, 1)), (100, 200, (2, 3))]
    assert not route(prefill).blocks
    assert len(route(prefill).segments) == 2
    assert route([(0, 9, ())]).empty


def test_adapters_of_other_ranks_in_one_batch_share_the_largest_unit() -> None:
    rows = [tuple(range(32)), tuple(range(32, 40)), tuple(range(48, 64))]
    (block,) = route([(i, i + 1, own) for i, own in enumerate(rows)]).blocks
    assert (block.unit, block.count) == (8, 8)


@pytest.mark.parametrize("idle", [0, 1])
def test_a_neighbours_overflow_or_nan_stays_with_the_neighbour(idle: int) -> None:
    """Also that of an adapter that lies between those of the batch and has no token in it."""
    a, b = arena((16,), 16, rows=24)
    a[:, 8:16] = 3e38
    b[0][8:16] = float("nan") if idle else 3e38
    x, y = torch.ones(9, 16), torch.zeros(9, 16)
    mine, other, third = tuple(range(8)), tuple(range(8, 16)), tuple(range(16, 24))
    cycle = [mine, third] if idle else [mine, other, third]
    parts = [(i, i + 1, cycle[i % len(cycle)]) for i in range(9)]
    routing = route(parts)
    assert routing.blocks, "the case is about the batched path"
    lora_apply(y, x, a, b, routing)
    for t, (_, _, rows) in enumerate(parts):
        if rows != other:
            clean = torch.zeros(1, 16)
            lora_apply(clean, x[:1], a, b, route([(0, 1, rows)]))
            torch.testing.assert_close(y[t], clean[0], atol=1e-4, rtol=1e-4)


def test_unowned_rows_are_not_read_into_anybody() -> None:
    """NaN in rows of the arena outside the batch's range."""
    a, b = arena((16,), 16, rows=32)
    a[:, 24:] = float("nan")
    b[0][24:] = float("nan")
    y = torch.zeros(4, 16)
    parts = [(i, i + 1, tuple(range(6 * i, 6 * i + 6))) for i in range(4)]
    lora_apply(y, torch.ones(4, 16), a, b, route(parts))
    assert torch.isfinite(y).all()


def test_y_and_x_may_be_slices_of_larger_buffers() -> None:
    a, b = arena((16, 32), 48)
    x = torch.randn(6, 100)[:, 7:55]
    y = torch.randn(6, 90)
    before = y.clone()
    parts = [(i, i + 1, (2 * i, 2 * i + 1)) for i in range(6)]
    want = lora_reference(y[:, 10:58], x, a, b, [p[2] for p in parts])
    lora_apply(y[:, 10:58], x, a, b, route(parts))
    torch.testing.assert_close(y[:, 10:58].double(), want, atol=1e-4, rtol=1e-4)
    assert torch.equal(y[:, :10], before[:, :10])
    assert torch.equal(y[:, 58:], before[:, 58:])
