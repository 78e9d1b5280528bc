"""Paged prefill in Triton's interpreter against the loop in float64."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lorry_kernels.ops import prefill_plan
from lorry_kernels.ops.attention_shape import HEAD_DIMS, prefill_tile
from lorry_kernels.ops.decode_plan import DecodePlan
from lorry_kernels.ops.paged_decode import DecodeWorkspace, paged_decode
from lorry_kernels.ops.paged_prefill import paged_prefill
from lorry_kernels.ops.prefill_plan import PrefillPlan
from tests.kernels.paged import CPU, Paged, close, paged, rows
from tests.kernels.pairwise import pairwise
from tests.kernels.sparse import far_apart
from tests.support.interpreter import dots_by_row


def starts_of(queries: Sequence[int]) -> Tensor:
    return torch.tensor([0, *accumulate(queries)], dtype=torch.int32)


def prefill(batch: Paged, q: Tensor, queries: Sequence[int], **options: Any) -> Tensor:
    plan = PrefillPlan.allocate(q.shape[0], len(queries), q.shape[1], batch.k_pages.shape[1], q.shape[2], device=CPU)
    plan.fill(starts_of(queries), batch.lengths)
    return paged_prefill(q, batch.k_pages, batch.v_pages, batch.table, plan, **options)


def check(batch: Paged, q: Tensor, queries: Sequence[int], got: Tensor, window: int | None = None) -> None:
    assert got.dtype == q.dtype
    begin = 0
    for row, count in enumerate(queries):
        own = slice(begin, begin + count)
        if count:
            close(got[own], batch.reference(q[own], row, window))
        begin += count


CASES = pairwise(
    {
        "group": (1, 3, 4, 7, 8, 16),
        "dim": (64, 80, 96, 128, 192, 256),
        "page": (16, 32, 48, 64),
        "cached": ("0", "1", "page-1", "page", "62", "63", "64", "130"),
        "queries": (1, 3, 17),
        "window": (None, 1, 20, 64, 100),
        "dtype": (torch.float16, torch.float32),
        "kv_heads": (1, 2),
        "shared": (False, True),
    }
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(value) for value in case.values()))
def test_prefill_equals_the_loop(case: dict[str, Any]) -> None:
    page, kv_heads, dim = case["page"], case["kv_heads"], case["dim"]
    queries = [case["queries"], 2]
    cached = [eval(case["cached"], {"page": page}), page - 1]
    lengths = [old + new for old, new in zip(cached, queries, strict=True)]
    batch = paged(
        lengths, kv_heads, dim, page, case["dtype"], window=case["window"], queries=queries, shared=case["shared"]
    )
    q = rows(sum(queries), kv_heads * case["group"], dim, case["dtype"])
    check(batch, q, queries, prefill(batch, q, queries, window=case["window"]), case["window"])


@pytest.mark.parametrize("window", [None, 70, 151])
def test_a_prompt_of_several_blocks_equals_the_loop(window: int | None) -> None:
    """Of each block some tiles are masked and some are not, and the last block's rows are not all of them queries."""
    block = prefill_tile("interpreter", 64).rows // 8
    queries = [2 * block + 3]
    batch = paged([queries[0] + 200], 1, 64, 16, torch.float32, window=window, queries=queries)
    q = rows(queries[0], 8, 64, torch.float32)
    check(batch, q, queries, prefill(batch, q, queries, window=window), window)


def test_one_head_a_group_and_more_tokens_than_a_block() -> None:
    batch = paged([140], 1, 64, 32, torch.float16)
    q = rows(140, 1, 64, torch.float16)
    check(batch, q, [140], prefill(batch, q, [140]))


@pytest.mark.parametrize("window", [None, 65])
def test_a_query_is_the_same_bits_alone_in_any_batch_and_however_its_sequence_is_cut(window: int | None) -> None:
    with dots_by_row():
        check_bits(window)


def check_bits(window: int | None) -> None:
    queries, lengths = [33, 0, 7, 1], [150, 20, 7, 65]
    batch = paged(lengths, 1, 64, 16, torch.float16, queries=lengths)
    q = rows(sum(queries), 16, 64, torch.float16)
    together = prefill(batch, q, queries, window=window)
    assert torch.equal(together, prefill(batch, q, queries, window=window))
    order, begins = [3, 2, 0], starts_of(queries).tolist()
    mixed = replace(batch, table=batch.table[order].contiguous(), lengths=batch.lengths[order].contiguous())
    back = torch.cat([torch.arange(begins[row], begins[row + 1]) for row in order])
    again = prefill(mixed, q[back].contiguous(), [queries[row] for row in order], window=window)
    assert torch.equal(again, together[back])
    done = 117
    for piece in (1, 5, 16, 11):
        cut = Paged(
            batch.k_pages, batch.v_pages, batch.table[:1].contiguous(), torch.tensor([done + piece], dtype=torch.int32)
        )
        own = slice(done - 117, done - 117 + piece)
        assert torch.equal(prefill(cut, q[own].contiguous(), [piece], window=window), together[own])
        done += piece


def test_one_query_agrees_with_decode() -> None:
    batch = paged([150, 1, 64], 2, 64, 16, torch.float32)
    q = rows(3, 8, 64, torch.float32)
    plan = DecodePlan.allocate(3, batch.table.shape[1], 16, device=CPU, split_tokens=64)
    plan.fill(batch.lengths)
    workspace = DecodeWorkspace.allocate(plan.capacity, 8, 64, device=CPU)
    want = paged_decode(q, batch.k_pages, batch.v_pages, batch.table, plan, workspace)
    torch.testing.assert_close(prefill(batch, q, [1, 1, 1]), want, atol=1e-6, rtol=1e-6)


def test_rows_of_no_sequence_are_not_written_and_rows_may_be_slices() -> None:
    queries = [3, 0, 2]
    batch = paged([20, 4, 2], 1, 80, 16, torch.float32)
    buffer = torch.full((9, 3 + 2, 80), float("nan"))
    q = buffer[:, :3]
    q[:5] = rows(5, 3, 80, torch.float32)
    whole = torch.full((9, 5, 80), 7.0)
    out = whole[:, 1:4]
    got = prefill(batch, q, queries, out=out)
    assert got.data_ptr() == out.data_ptr()
    check(batch, q, queries, out)
    assert (whole[5:] == 7.0).all()
    assert (whole[:, [0, 4]] == 7.0).all()


def test_rows_beyond_int32_are_reached(tmp_path: Path) -> None:
    """Of q, of the result and of the pages."""
    batch = paged([20], 1, 64, 16, torch.float16)
    q = rows(3, 2, 64, torch.float16)
    near = prefill(batch, q, [3])
    check(batch, q, [3], near)
    owned = batch.table[0].flip(0).tolist()
    k_pages = far_apart(tmp_path / "k_pages", batch.k_pages[[0, *owned]])
    v_pages = far_apart(tmp_path / "v_pages", batch.v_pages[[0, *owned]])
    far = Paged(k_pages, v_pages, torch.tensor([[2, 1]], dtype=torch.int32), batch.lengths)
    out = far_apart(tmp_path / "out", torch.zeros_like(q))
    prefill(far, far_apart(tmp_path / "q", q), [3], out=out)
    assert torch.equal(out, near)


def test_a_fault_gets_nan_and_no_other_sequence_sees_it() -> None:
    queries = [2, 3, 2]
    batch = paged([20, 40, 2], 1, 64, 16, torch.float16)
    q = rows(7, 4, 64, torch.float16)
    good = prefill(batch, q, queries)
    for value in (2, -1, batch.table.shape[1] * 16 + 1):
        lengths = batch.lengths.clone()
        lengths[1] = value
        for window in (None, 4):
            got = prefill(replace(batch, lengths=lengths), q, queries, window=window)
            assert got[2:5].isnan().all()
            assert not got[[0, 1, 5, 6]].isnan().any()
            if window is None:
                assert torch.equal(got[[0, 1, 5, 6]], good[[0, 1, 5, 6]])


def test_starts_that_are_none_make_no_block() -> None:
    plan = PrefillPlan.allocate(8, 3, 4, 1, 64, device=CPU)
    lengths = torch.tensor([9, 9, 9], dtype=torch.int32)
    for starts, owners in (([0, 3, 9, 9], [0, 2]), ([-1, 2, 4, 4], [1]), ([0, 5, 4, 8], [0, 2])):
        plan.fill(torch.tensor(starts, dtype=torch.int32), lengths)
        seen = [pair[0] for pair in plan.item[: int(plan.items)].tolist()]
        assert [owner for owner in seen if starts[owner + 1] > starts[owner]] == [
            owner for owner in owners if starts[owner + 1] > starts[owner] and starts[owner + 1] <= 8
        ]


@pytest.mark.soak
@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 150)), min_size=1, max_size=3),
    group=st.integers(1, 16),
    dim=st.sampled_from(HEAD_DIMS),
    page=st.sampled_from([16, 32, 48, 64, 128, 256]),
    window=st.one_of(st.none(), st.integers(1, 400)),
    dtype=st.sampled_from([torch.float16, torch.float32]),
    seed=st.integers(0, 999),
)
def test_prefill_of_any_shape_equals_the_loop(
    sizes: list[tuple[int, int]],
    group: int,
    dim: int,
    page: int,
    window: int | None,
    dtype: torch.dtype,
    seed: int,
) -> None:
    queries = [new for _, new in sizes]
    lengths = [cached + new for cached, new in sizes]
    batch = paged(lengths, 1, dim, page, dtype, window=window, queries=queries, seed=seed)
    q = rows(max(sum(queries), 1), group, dim, dtype, seed)
    check(batch, q, queries, prefill(batch, q, queries, window=window), window)


@settings(max_examples=12, deadline=None)
@given(
    queries=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    group=st.sampled_from([1, 3, 16]),
    spare=st.integers(0, 9),
)
def test_a_plan_holds_every_query_once(queries: list[int], group: int, spare: int) -> None:
    tokens = max(sum(queries) + spare, 1)
    plan = PrefillPlan.allocate(tokens, len(queries), group, 1, 64, device=CPU)
    plan.fill(starts_of(queries), torch.tensor(queries, dtype=torch.int32))
    items = int(plan.items)
    assert items <= plan.capacity
    want = [(row, first) for row, count in enumerate(queries) for first in reversed(range(0, count, plan.block_tokens))]
    assert [tuple(pair) for pair in plan.item[:items].tolist()] == want
    assert plan.starts.tolist() == starts_of(queries).tolist()
    assert plan.lengths.tolist() == queries


def test_a_plan_of_more_sequences_than_a_step_of_its_sums_counts_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefill_plan, "_BLOCK", 16)
    queries = [1] * 35
    plan = PrefillPlan.allocate(35, 35, 4, 1, 64, device=CPU)
    plan.fill(starts_of(queries), torch.tensor(queries, dtype=torch.int32))
    assert plan.item[: int(plan.items), 0].tolist() == list(range(35))


@pytest.mark.parametrize("name", ["item", "items", "starts", "lengths"])
def test_a_plan_of_other_buffers_cannot_be_made(name: str) -> None:
    """So no layer has to look at them."""
    plan = PrefillPlan.allocate(4, 2, 4, 2, 64, device=CPU)
    buffer: Tensor = getattr(plan, name)
    for error, changed in ((TypeError, buffer.long()), (ValueError, buffer[None])):
        part: dict[str, Any] = {name: changed}
        with pytest.raises(error, match=rf"^{name}:"):
            replace(plan, **part)
    with pytest.raises(ValueError, match=r"^item: has strides"):
        replace(plan, item=torch.zeros(2, 4, dtype=torch.int32)[:, ::2])
    with pytest.raises(ValueError, match=r"^starts: has shape \[3\], must be \[2\]"):
        replace(plan, lengths=plan.lengths[:1])


def test_bad_calls_are_refused_by_the_arguments_name() -> None:
    batch = paged([20, 3], 2, 64, 16, torch.float16)
    q = rows(4, 4, 64, torch.float16)
    plan = PrefillPlan.allocate(4, 2, 4, 2, 64, device=CPU)
    good: dict[str, Any] = {
        "q": q,
        "k_pages": batch.k_pages,
        "v_pages": batch.v_pages,
        "table": batch.table,
        "plan": plan,
    }
    bad: list[tuple[str, type[Exception], dict[str, Any]]] = [
        ("q", TypeError, {"q": q.float()}),
        ("q", ValueError, {"q": q[:3]}),
        ("q", ValueError, {"q": q[:, :3]}),
        ("v_pages", ValueError, {"v_pages": batch.v_pages.contiguous()}),
        ("table", TypeError, {"table": batch.table.long()}),
        ("table", ValueError, {"table": batch.table[:1]}),
        ("table", ValueError, {"table": torch.zeros(2, 2**26, dtype=torch.int32)}),
        ("plan", ValueError, {"plan": PrefillPlan.allocate(4, 2, 8, 2, 64, device=CPU)}),
        ("plan", ValueError, {"plan": PrefillPlan.allocate(4, 2, 4, 2, 128, device=CPU)}),
        ("plan", ValueError, {"plan": replace(plan, block_tokens=plan.block_tokens // 2)}),
        ("window", ValueError, {"window": -1}),
        ("scale", ValueError, {"scale": -1.0}),
        ("out", ValueError, {"out": q[:2]}),
    ]
    for name, error, change in bad:
        with pytest.raises(error, match=rf"^{name}\b"):
            paged_prefill(**{**good, **change})
    for name, arguments in (
        ("tokens", (0, 2, 4, 2, 64)),
        ("sequences", (4, 0, 4, 2, 64)),
        ("kv_heads", (4, 2, 4, 0, 64)),
        ("q", (4, 2, 34, 2, 64)),
    ):
        with pytest.raises(ValueError, match=rf"^{name}:"):
            PrefillPlan.allocate(*arguments, device=CPU)
    with pytest.raises(ValueError, match=r"^starts:"):
        plan.fill(torch.zeros(2, dtype=torch.int32), batch.lengths)
    with pytest.raises(TypeError, match=r"^lengths:"):
        plan.fill(torch.zeros(3, dtype=torch.int32), batch.lengths.long())
