"""The cache write in Triton's interpreter: bit for bit, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lorry_kernels.ops.kv_write import kv_write
from lorry_kernels.reference import kv_write_reference
from tests.kernels.paged import rows
from tests.kernels.pairwise import pairwise
from tests.kernels.sparse import far_apart

CASES = pairwise(
    {
        "tokens": (1, 15, 16, 17, 33),
        "dim": (64, 80, 96, 128, 192, 256),
        "page": (16, 48, 64),
        "kv_heads": (1, 3),
        "dtype": (torch.float16, torch.float32),
        "padded": (False, True),
    }
)


def arena(pages: int, kv_heads: int, page: int, dim: int, dtype: torch.dtype) -> Tensor:
    """Between two pages that no slot may reach."""
    return torch.full((pages + 2, 2, 2, kv_heads, page, dim), float("nan"), dtype=dtype)


def bits(value: Tensor) -> Tensor:
    return value.contiguous().view(torch.int16 if value.element_size() == 2 else torch.int32)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(value) for value in case.values()))
def test_rows_go_to_their_slots_and_nowhere_else(case: dict[str, Any]) -> None:
    tokens, page, heads, dim, dtype = (case[name] for name in ("tokens", "page", "kv_heads", "dim", "dtype"))
    pages = 5
    got, want = (arena(pages, heads, page, dim, dtype) for _ in range(2))
    fused = rows(tokens, 4 * heads, dim, dtype)  # Queries, keys and values as one matmul gives them.
    k, v = fused[:, 2 * heads : 3 * heads], fused[:, 3 * heads :]
    slot = torch.randperm(pages * page, generator=torch.Generator().manual_seed(1))[:tokens]
    if case["padded"]:
        slot[::3] = -1
        slot[1::7] = pages * page
        slot[2::7] = -page
    kv_write(k, v, got[1:-1, 1, 0], got[1:-1, 1, 1], slot)
    kv_write_reference(k, v, want[1:-1, 1, 0], want[1:-1, 1, 1], slot.tolist())
    assert torch.equal(bits(got), bits(want))


def test_no_row_is_no_launch_and_values_of_any_kind_are_kept() -> None:
    store = arena(2, 1, 16, 64, torch.float16)
    before = bits(store).clone()
    empty = torch.zeros(0, 1, 64, dtype=torch.float16)
    kv_write(empty, empty, store[:, 0, 0], store[:, 0, 1], torch.zeros(0, dtype=torch.int64))
    assert torch.equal(bits(store), before)
    odd = torch.tensor([float("inf"), -0.0, 6e-8, 65504.0] * 16, dtype=torch.float16).view(1, 1, 64)
    kv_write(odd, odd, store[:, 0, 0], store[:, 0, 1], torch.tensor([17]))
    assert torch.equal(bits(store[1, 0, 0, 0, 1]), bits(odd[0, 0]))


def test_rows_and_pages_beyond_int32_are_reached(tmp_path: Path) -> None:
    k, v = (rows(3, 1, 64, torch.float16, seed) for seed in (1, 2))
    near = torch.zeros(2, 3, 1, 16, 64, dtype=torch.float16)
    k_pages, v_pages = (far_apart(tmp_path / name, near[0]) for name in ("k_pages", "v_pages"))
    slot = torch.tensor([2 * 16 + 5, 16, 2 * 16 + 4])
    kv_write(k, v, near[0], near[1], slot)
    kv_write(far_apart(tmp_path / "k", k), far_apart(tmp_path / "v", v), k_pages, v_pages, slot)
    assert torch.equal(near[0, 2, 0, 5], k[0, 0])
    assert torch.equal(near[1, 2, 0, 4], v[2, 0])
    assert torch.equal(k_pages, near[0])
    assert torch.equal(v_pages, near[1])


def test_bad_calls_are_refused_by_the_arguments_name_and_write_nothing() -> None:
    store = arena(2, 2, 16, 64, torch.float16)
    before = bits(store).clone()
    row = rows(3, 2, 64, torch.float16)
    good: dict[str, Any] = {
        "k": row,
        "v": row,
        "k_pages": store[:, 0, 0],
        "v_pages": store[:, 0, 1],
        "slot": torch.arange(3),
    }
    bad: list[tuple[str, type[Exception], dict[str, Any]]] = [
        ("k", TypeError, {"k": row.float()}),
        ("k", ValueError, {"k": row[:, :1]}),
        ("v", ValueError, {"v": row[:2]}),
        ("v", ValueError, {"v": torch.zeros(3, 2, 128, dtype=torch.float16)[..., ::2]}),
        ("k_pages", ValueError, {"k_pages": store[:, 0, 0, :, :8]}),
        ("k_pages", ValueError, {"k_pages": store[0, 0, 0]}),
        ("v_pages", ValueError, {"v_pages": store[:, 0, 1].contiguous()}),
        ("slot", TypeError, {"slot": torch.arange(3, dtype=torch.int32)}),
        ("slot", ValueError, {"slot": torch.arange(4)}),
        ("slot", ValueError, {"slot": torch.arange(6)[::2]}),
    ]
    for name, error, change in bad:
        with pytest.raises(error, match=rf"^{name}:"):
            kv_write(**{**good, **change})
    assert torch.equal(bits(store), before)
