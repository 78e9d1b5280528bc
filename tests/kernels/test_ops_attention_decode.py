"""Paged decode in Triton's interpreter against the loop in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lorry_kernels.ops import decode_plan
from lorry_kernels.ops.attention_shape import HEAD_DIMS
from lorry_kernels.ops.decode_plan import DecodePlan, split_count
from lorry_kernels.ops.paged_decode import DecodeWorkspace, paged_decode
from tests.kernels.paged import CPU, Paged, close, paged, rows
from tests.kernels.pairwise import pairwise
from tests.kernels.sparse import far_apart

SPLIT = 64


def plan_of(batch: Paged, window: int | None = None, split: int = SPLIT, capacity: int | None = None) -> DecodePlan:
    plan = DecodePlan.allocate(
        len(batch.lengths),
        batch.table.shape[1],
        batch.k_pages.shape[2],
        device=CPU,
        window=window,
        split_tokens=split,
        capacity=capacity,
    )
    plan.fill(batch.lengths)
    return plan


def decode(batch: Paged, q: Tensor, plan: DecodePlan, **options: Any) -> Tensor:
    """With a workspace full of NaN: what no split wrote would be seen."""
    workspace = DecodeWorkspace.allocate(plan.capacity, q.shape[1], q.shape[2], device=CPU)
    workspace.partial.fill_(float("nan"))
    workspace.peaks.fill_(float("nan"))
    return paged_decode(q, batch.k_pages, batch.v_pages, batch.table, plan, workspace, **options)


def check(batch: Paged, q: Tensor, got: Tensor, window: int | None = None, scale: float | None = None) -> None:
    assert got.dtype == q.dtype
    for row, length in enumerate(batch.lengths.tolist()):
        want = (
            batch.reference(q[row : row + 1], row, window, scale) if length else torch.zeros(1, *q.shape[1:]).double()
        )
        close(got[row : row + 1], want)


CASES = pairwise(
    {
        "group": (1, 3, 4, 7, 8, 16),
        "dim": (64, 80, 96, 128, 192, 256),
        "page": (16, 32, 48, 64),
        "length": ("1", "page-1", "page", "page+1", "split-1", "split", "split+1", "2*split+1"),
        "window": (None, 1, 40, SPLIT, SPLIT + 1),
        "dtype": (torch.float16, torch.float32),
        "kv_heads": (1, 2),
        "shared": (False, True),
    }
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(value) for value in case.values()))
def test_decode_equals_the_loop(case: dict[str, Any]) -> None:
    page, group = case["page"], case["group"]
    length = eval(case["length"], {"page": page, "split": SPLIT})
    lengths = [length, 1, page + 2]
    batch = paged(
        lengths,
        case["kv_heads"],
        case["dim"],
        page,
        case["dtype"],
        window=case["window"],
        shared=case["shared"],
    )
    q = rows(3, case["kv_heads"] * group, case["dim"], case["dtype"])
    check(batch, q, decode(batch, q, plan_of(batch, case["window"])), case["window"])


@pytest.mark.parametrize("length", [511, 512, 513])
def test_the_shipped_split_has_exact_borders(length: int) -> None:
    batch = paged([length], 1, 64, 64, torch.float16)
    q = rows(1, 4, 64, torch.float16)
    plan = plan_of(batch, split=512)
    assert int(plan.items) == (2 if length > 512 else 1)
    check(batch, q, decode(batch, q, plan))


def test_a_row_is_the_same_bits_alone_in_any_batch_and_anywhere_in_memory() -> None:
    lengths = [150, 1, 64, 0, 65, 129]
    q = rows(len(lengths), 6, 64, torch.float16)
    batch = paged(lengths, 2, 64, 16, torch.float16)
    together = decode(batch, q, plan_of(batch))
    assert torch.equal(together, decode(batch, q, plan_of(batch)))
    order = [4, 0, 3, 5, 2, 1]
    mixed = replace(batch, table=batch.table[order].contiguous(), lengths=batch.lengths[order].contiguous())
    assert torch.equal(decode(mixed, q[order].contiguous(), plan_of(mixed)), together[order])
    moved = torch.randperm(batch.k_pages.shape[0], generator=torch.Generator().manual_seed(5))
    k_pages, v_pages = torch.empty_like(batch.k_pages), torch.empty_like(batch.v_pages)
    k_pages[moved], v_pages[moved] = batch.k_pages, batch.v_pages
    for row in (0, 4, 5):
        wide = torch.zeros(1, 40, dtype=torch.int32)
        wide[0, : batch.table.shape[1]] = moved[batch.table[row].long()].int()
        alone = Paged(k_pages, v_pages, wide, batch.lengths[row : row + 1].contiguous())
        one = q[row : row + 1].contiguous()
        assert torch.equal(decode(alone, one, plan_of(alone)), together[row : row + 1])
        tight = plan_of(alone, capacity=split_count([lengths[row]], None, SPLIT))
        assert torch.equal(decode(alone, one, tight), together[row : row + 1])


def test_a_row_without_keys_gets_zeros_and_a_fault_gets_nan_and_no_other_row_sees_it() -> None:
    batch = paged([70, 5, 0, 70, 9], 1, 64, 16, torch.float16)
    q = rows(5, 2, 64, torch.float16)
    good = decode(batch, q, plan_of(batch))
    for value in (-1, batch.table.shape[1] * 16 + 1, 2**31 - 1):
        lengths = batch.lengths.clone()
        lengths[0] = value
        faulty = replace(batch, lengths=lengths)
        got = decode(faulty, q, plan_of(faulty))
        assert got[0].isnan().all()
        assert torch.equal(got[1:], good[1:])
    assert torch.equal(good[2], torch.zeros_like(good[2]))


def test_a_row_whose_splits_do_not_fit_gets_nan_and_the_others_their_own() -> None:
    batch = paged([70, 5, 130, 130, 9], 1, 64, 16, torch.float16)
    q = rows(5, 2, 64, torch.float16)
    plan = plan_of(batch, capacity=9)
    assert split_count(batch.lengths.tolist(), None, SPLIT) == 10
    assert int(plan.items) == 8
    got, want = decode(batch, q, plan), decode(batch, q, plan_of(batch, capacity=10))
    assert got[3].isnan().all()
    assert torch.equal(got[[0, 1, 2, 4]], want[[0, 1, 2, 4]])
    check(batch, q, want)


def test_rows_may_be_slices_of_larger_buffers() -> None:
    batch = paged([20, 90], 2, 80, 16, torch.float32)
    buffer = torch.full((2, 3 * 6 + 2, 80), float("nan"))
    q = buffer[:, 6:12]
    q.copy_(rows(2, 6, 80, torch.float32))
    out = torch.full((2, 8, 80), 7.0)[:, 1:7]
    got = decode(batch, q, plan_of(batch), out=out)
    assert got.data_ptr() == out.data_ptr()
    check(batch, q, out)
    whole = out._base
    assert whole is not None
    assert (whole[:, [0, 7]] == 7.0).all()


def test_scores_take_the_scale_that_is_given() -> None:
    batch = paged([33], 1, 64, 16, torch.float32)
    q = rows(1, 2, 64, torch.float32)
    check(batch, q, decode(batch, q, plan_of(batch), scale=0.5), scale=0.5)


def test_scores_of_any_size_stay_finite() -> None:
    batch = paged([70], 1, 64, 16, torch.float32)
    q = rows(1, 2, 64, torch.float32) * 1e4
    check(batch, q, decode(batch, q, plan_of(batch)))


def test_offsets_beyond_int32_reach_their_page() -> None:
    """A page stride as large as an arena of many layers has, over memory that is never touched. What an offset that
    wrapped around would reach is there too, and holds zeros."""
    page, dim, step = 16, 64, 2**30 + 16
    plane = page * dim
    first = 2**31
    storage = torch.empty(first + 2 * step + 2 * plane, dtype=torch.float16)
    shape, strides = (3, 1, page, dim), (step, plane, dim, 1)
    k_pages, v_pages = (storage.as_strided(shape, strides, first + begin) for begin in (0, plane))
    small = paged([20], 1, dim, page, torch.float16)
    for index in range(2):
        k_pages[2 - index] = small.k_pages[small.table[0, index]]
        v_pages[2 - index] = small.v_pages[small.table[0, index]]
    batch = Paged(k_pages, v_pages, torch.tensor([[2, 1]], dtype=torch.int32), small.lengths)
    q = rows(1, 2, dim, torch.float16)
    check(small, q, decode(batch, q, plan_of(batch)))


@pytest.mark.parametrize("last", [15, 3 * SPLIT], ids=["one split", "merged"])
def test_rows_beyond_int32_are_read_and_written(last: int, tmp_path: Path) -> None:
    batch = paged([20, 9, last], 1, 64, 16, torch.float16)
    q = rows(3, 2, 64, torch.float16)
    out = far_apart(tmp_path / "out", torch.zeros_like(q))
    decode(batch, far_apart(tmp_path / "q", q), plan_of(batch), out=out)
    assert torch.equal(out, decode(batch, q, plan_of(batch)))


@pytest.mark.soak
@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 1100), min_size=1, max_size=4),
    group=st.integers(1, 16),
    dim=st.sampled_from(HEAD_DIMS),
    page=st.sampled_from([16, 32, 48, 64, 128, 256]),
    window=st.one_of(st.none(), st.integers(1, 1200)),
    dtype=st.sampled_from([torch.float16, torch.float32]),
    shared=st.booleans(),
    seed=st.integers(0, 999),
)
def test_decode_of_any_shape_equals_the_loop(
    lengths: list[int],
    group: int,
    dim: int,
    page: int,
    window: int | None,
    dtype: torch.dtype,
    shared: bool,
    seed: int,
) -> None:
    batch = paged(lengths, 2, dim, page, dtype, window=window, shared=shared, seed=seed)
    q = rows(len(lengths), 2 * group, dim, dtype, seed)
    check(batch, q, decode(batch, q, plan_of(batch, window, split=512)), window)


@settings(max_examples=12, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 8 * SPLIT), min_size=1, max_size=5),
    window=st.sampled_from([None, 1, SPLIT - 1, SPLIT, SPLIT + 1, 3 * SPLIT]),
)
def test_a_plan_names_every_split_once(lengths: list[int], window: int | None) -> None:
    count = split_count(lengths, window, SPLIT)
    plan = DecodePlan.allocate(
        len(lengths), 8 * SPLIT // 16, 16, device=CPU, window=window, split_tokens=SPLIT, capacity=count
    )
    plan.fill(torch.tensor(lengths, dtype=torch.int32))
    assert int(plan.items) == count
    named = [tuple(pair) for pair in plan.item[:count].tolist()]
    assert len(set(named)) == count
    for row, length in enumerate(lengths):
        low = 0 if window is None else max(0, length - window)
        seen = sorted({position // SPLIT for position in range(low, length)}) or [0]
        assert sorted(split for owner, split in named if owner == row) == seen
        behind, splits, kept = plan.parts[row].tolist()
        assert (splits, kept) == (len(seen), length)
        assert named[row] == (row, seen[0])
        assert named[behind : behind + splits - 1] == [(row, split) for split in seen[1:]]


def test_a_plan_of_more_rows_than_a_step_of_its_sums_counts_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_plan, "_BLOCK", 16)
    lengths = [1 + 70 * (row % 3) for row in range(35)] + [20 * SPLIT]
    count = split_count(lengths, None, SPLIT)
    plan = DecodePlan.allocate(36, 80, 16, device=CPU, split_tokens=SPLIT)
    plan.fill(torch.tensor(lengths, dtype=torch.int32))
    assert int(plan.items) == count
    assert len({tuple(pair) for pair in plan.item[:count].tolist()}) == count


def test_bad_calls_are_refused_by_the_arguments_name() -> None:
    batch = paged([20, 3], 2, 64, 16, torch.float16)
    q, plan = rows(2, 4, 64, torch.float16), plan_of(batch)
    workspace = DecodeWorkspace.allocate(plan.capacity, 4, 64, device=CPU)
    good: dict[str, Any] = {
        "q": q,
        "k_pages": batch.k_pages,
        "v_pages": batch.v_pages,
        "table": batch.table,
        "plan": plan,
        "workspace": workspace,
    }
    narrow = DecodeWorkspace.allocate(plan.capacity - 1, 4, 64, device=CPU)
    other = DecodeWorkspace.allocate(plan.capacity, 2, 64, device=CPU)
    odd_page = torch.zeros(4, 2, 24, 64, dtype=torch.float16)
    odd_dim = torch.zeros(4, 2, 16, 72, dtype=torch.float16)
    bad: list[tuple[str, type[Exception], dict[str, Any]]] = [
        ("q", TypeError, {"q": q.float()}),
        ("q", TypeError, {"q": q.numpy()}),
        ("q", ValueError, {"q": q[:, :3]}),
        ("q", ValueError, {"q": q[:1]}),
        ("q", ValueError, {"q": rows(2, 2 * 17, 64, torch.float16)}),
        ("q", ValueError, {"q": torch.zeros(2, 64, 4, dtype=torch.float16).mT}),
        ("q", ValueError, {"q": torch.zeros(2 * 260, dtype=torch.float16)[3 : 3 + 512].view(2, 4, 64)}),
        ("q", ValueError, {"q": torch.zeros(2, 260, dtype=torch.float16).as_strided((2, 4, 64), (260, 64, 1))}),
        ("k_pages", TypeError, {"k_pages": batch.k_pages.double()}),
        ("k_pages", ValueError, {"k_pages": odd_page, "v_pages": odd_page}),
        ("k_pages", ValueError, {"k_pages": odd_dim, "v_pages": odd_dim}),
        ("v_pages", TypeError, {"v_pages": batch.v_pages.float()}),
        ("v_pages", ValueError, {"v_pages": batch.v_pages.contiguous()}),
        ("v_pages", ValueError, {"v_pages": batch.v_pages[:1]}),
        ("table", TypeError, {"table": batch.table.long()}),
        ("table", ValueError, {"table": batch.table[:1]}),
        ("table", ValueError, {"table": torch.zeros(2, 4, dtype=torch.int32)[:, ::2]}),
        ("plan", ValueError, {"plan": DecodePlan.allocate(2, 2, 32, device=CPU)}),
        ("workspace", ValueError, {"workspace": narrow, "plan": DecodePlan.allocate(2, 100, 16, device=CPU)}),
        ("workspace", ValueError, {"workspace": other}),
        ("out", ValueError, {"out": q[:, :2]}),
        ("out", TypeError, {"out": q.float()}),
        ("scale", ValueError, {"scale": 0.0}),
        ("scale", ValueError, {"scale": math.nan}),
    ]
    wide = torch.zeros(2, 100, dtype=torch.int32)
    elsewhere = DecodeWorkspace(workspace.partial.to("meta"), workspace.peaks.to("meta"))
    bad.append(("workspace.partial", TypeError, {"workspace": elsewhere}))
    for name, error, change in bad:
        call = {**good, **change}
        if "plan" in change and change["plan"].max_pages == 100:
            call["table"] = wide
        with pytest.raises(error, match=rf"^{name}\b"):
            paged_decode(**call)


def odd(like: Tensor) -> Tensor:
    """The same from an address that is no multiple of 16 bytes."""
    return torch.zeros(like.numel() + 1, dtype=like.dtype)[1:].view(like.shape)


@pytest.mark.parametrize(
    ("name", "change", "error"),
    [
        ("partial", lambda partial: partial.double(), TypeError),
        ("partial", lambda partial: partial[..., ::2], ValueError),
        ("partial", lambda partial: partial[0], ValueError),
        ("partial", odd, ValueError),
        ("peaks", lambda peaks: peaks.double(), TypeError),
        ("peaks", lambda peaks: peaks[:-1], ValueError),
        ("peaks", lambda peaks: peaks[:, :-1].contiguous(), ValueError),
        ("peaks", lambda peaks: peaks[..., :1].contiguous(), ValueError),
        ("peaks", lambda peaks: peaks.transpose(0, 1).contiguous().transpose(0, 1), ValueError),
        ("peaks", lambda peaks: peaks.to("meta"), TypeError),
        ("peaks", odd, ValueError),
        ("item", lambda item: item.long(), TypeError),
        ("item", lambda item: item[:, :1].contiguous(), ValueError),
        ("items", lambda items: items.long(), TypeError),
        ("items", lambda items: items[:0], ValueError),
        ("parts", lambda parts: parts.long(), TypeError),
        ("parts", lambda parts: parts[:, :2].contiguous(), ValueError),
        ("parts", lambda parts: parts.to("meta"), TypeError),
    ],
)
def test_a_plan_and_a_workspace_of_other_buffers_cannot_be_made(
    name: str, change: Callable[[Tensor], Tensor], error: type[Exception]
) -> None:
    """So no layer has to look at them."""
    made: Any = DecodeWorkspace.allocate(3, 4, 64, device=CPU)
    if not hasattr(made, name):
        made = DecodePlan.allocate(3, 4, 16, device=CPU)
    with pytest.raises(error, match=rf"^{name}:"):
        replace(made, **{name: change(getattr(made, name))})


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("rows", {"rows": 0}),
        ("max_pages", {"max_pages": 0}),
        ("max_pages", {"max_pages": 2**27}),
        ("page_tokens", {"page_tokens": 24}),
        ("page_tokens", {"page_tokens": 0}),
        ("split_tokens", {"split_tokens": 96}),
        ("window", {"window": 0}),
        ("capacity", {"capacity": 1}),
    ],
)
def test_a_plan_of_no_sense_is_refused(name: str, change: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=rf"^{name}:"):
        DecodePlan.allocate(**{"rows": 2, "max_pages": 4, "page_tokens": 16, "device": CPU, **change})  # type: ignore[arg-type]  # by name, on purpose
    with pytest.raises(TypeError, match=r"^lengths:"):
        DecodePlan.allocate(2, 4, 16, device=CPU).fill(torch.tensor([1, 2]))
