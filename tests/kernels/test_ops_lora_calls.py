"""Bad calls raise by the argument's name before a launch; offsets of more than 32 bits are followed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lorry_kernels.ops.expand import ExpandPlan, SiteVectors, expand
from lorry_kernels.ops.lora import LoraTables, checked_chunks, checked_ranks
from lorry_kernels.ops.shrink import ShrinkPlan, shrink
from lorry_kernels.tuning.rows import Phase
from tests.kernels.lora_site import CPU, close, site
from tests.kernels.sparse import sparse

Change = Callable[[Tensor], object]


def strided(tensor: Tensor) -> Tensor:
    """The same, its last dimension with stride 2."""
    return torch.stack([tensor, tensor], -1)[..., 0]


CALLS: list[tuple[str, Change, type[Exception]]] = [
    ("x", lambda x: x.half(), TypeError),
    ("x", lambda x: x[:, :-1], ValueError),
    ("x", lambda x: x[:-1], ValueError),
    ("x", strided, ValueError),
    ("x", lambda x: x.to("meta"), TypeError),
    ("x", lambda x: x.tolist(), TypeError),
    ("y", lambda y: y.double(), TypeError),
    ("y", lambda y: y[:, :-1], ValueError),
    ("y", strided, ValueError),
    ("arena", lambda arena: arena.half(), TypeError),
    ("arena", lambda arena: arena[1:], ValueError),
    ("arena", lambda arena: arena.view(1, -1), ValueError),
    ("a_offset", lambda table: table.int(), TypeError),
    ("a_offset", lambda table: table[1:], ValueError),
    ("a_offset", lambda table: table[:, 1:], ValueError),
    ("a_offset", strided, ValueError),
    ("b_offset", lambda table: table[:, :, 1:], ValueError),
    ("b_offset", lambda table: table.int(), TypeError),
    ("scale", lambda scale: scale.double(), TypeError),
    ("scale", lambda scale: scale.T, ValueError),
    ("planes", lambda planes: planes.half(), TypeError),
    ("planes", lambda planes: planes[:, :, :-1], ValueError),
    ("planes", lambda planes: planes[:, :, :, :-16], ValueError),
    ("planes", lambda planes: torch.cat([planes, planes], -1)[..., : planes.shape[-1]], ValueError),
    ("vectors", lambda vectors: vectors.half(), TypeError),
    ("vectors", lambda vectors: vectors[1:], ValueError),
    ("gain_offset", lambda table: table.int(), TypeError),
    ("addend_offset", lambda table: table[:-1], ValueError),
    ("bias", lambda bias: bias[1:], ValueError),
    ("bias", lambda bias: bias.half(), TypeError),
]


@pytest.mark.parametrize(
    ("argument", "change", "error"), CALLS, ids=[f"{name}-{number}" for number, (name, _, _) in enumerate(CALLS)]
)
def test_bad_calls(argument: str, change: Change, error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    made = site(64, (32, 16), 3, 2, lambda slot, s: 20, torch.float32, extras="all")
    assert made.vectors is not None
    lora = made.lora("decode")
    routing = made.routing("decode", [0, 1, 2])
    x, y = made.batch(3)
    own = made.vectors
    values: dict[str, Any] = {
        "x": x,
        "y": y,
        "arena": made.arena,
        "planes": lora.planes(3, CPU),
        "a_offset": made.tables.a_offset,
        "b_offset": made.tables.b_offset,
        "scale": made.tables.scale,
        "vectors": own.vectors,
        "gain_offset": own.gain_offset,
        "addend_offset": own.addend_offset,
        "bias": own.bias,
    }
    before = y.clone()
    values[argument] = change(values[argument])
    with pytest.raises(error, match=f"^{argument}: "):
        lora(
            values["y"],
            values["x"],
            values["arena"],
            LoraTables(values["a_offset"], values["b_offset"], values["scale"]),
            routing,
            values["planes"],
            SiteVectors(values["vectors"], values["gain_offset"], values["addend_offset"], values["bias"]),
        )
    assert torch.equal(y, before)


def test_a_routing_of_the_other_phase() -> None:
    made = site(64, (32,), 3, 1, lambda slot, s: 16, torch.float32)
    x, y = made.batch(3)
    lora, routing = made.lora("decode"), made.routing("prefill", [0, 1, 2])
    planes, tables = lora.planes(3, CPU), made.tables
    with pytest.raises(ValueError, match=r"^routing: has tiles of 64 rows, the plan is for 16"):
        shrink(x, made.arena, tables.a_offset, routing, planes, lora.shrink)
    with pytest.raises(ValueError, match=r"^routing: has tiles of 64 rows, the plan is for 16"):
        expand(y, planes, made.arena, tables.b_offset, tables.scale, routing, lora.expand)


@pytest.mark.parametrize(
    ("argument", "change", "error"),
    [
        *(
            (name, lambda table: table.long(), TypeError)
            for name in ("order", "tile", "tiles", "slot", "fault", "head")
        ),
        *((name, lambda table: table[:-1], ValueError) for name in ("tiles", "slot", "fault", "head")),
        ("order", strided, ValueError),
        ("tile", strided, ValueError),
        ("tile", lambda tile: tile[:, :2], ValueError),
        ("tile", lambda tile: tile.to("meta"), TypeError),
    ],
)
def test_a_routing_of_other_buffers_cannot_be_made(argument: str, change: Change, error: type[Exception]) -> None:
    """So no op has to look at them."""
    made = site(64, (32,), 3, 1, lambda slot, s: 16, torch.float32).routing("decode", [0, 1, 2])
    changed: Any = {argument: change(getattr(made, argument))}
    with pytest.raises(error, match=f"^{argument}: "):
        replace(made, **changed)


@pytest.mark.parametrize(
    ("plan", "argument", "error"),
    [
        (lambda: ShrinkPlan.of("decode", "sm_90", 0, 1, 1, torch.float16), "k", ValueError),
        (lambda: ShrinkPlan.of("decode", "sm_90", 64, 0, 1, torch.float16), "a_slices", ValueError),
        (lambda: ShrinkPlan.of("decode", "sm_90", 64, 1, 17, torch.float16), "blocks", ValueError),
        (lambda: ShrinkPlan.of("decode", "sm_90", 64, 1, 1, torch.float64), "dtype", TypeError),
        (lambda: ExpandPlan.of("decode", "sm_90", (), 1, 1, torch.float16, CPU), "widths", ValueError),
        (lambda: ExpandPlan.of("decode", "sm_90", (4, 0), 1, 1, torch.float16, CPU), "widths", ValueError),
        (lambda: ExpandPlan.of("decode", "sm_90", (4,), 0, 1, torch.float16, CPU), "blocks", ValueError),
        (lambda: ExpandPlan.of("decode", "sm_90", (4,), 1, 0, torch.float16, CPU), "split", ValueError),
        (
            lambda: ExpandPlan.of("decode", "sm_90", (4, 4, 4), 1, 1, torch.float16, CPU, a_slices=2),
            "a_slices",
            ValueError,
        ),
        (lambda: ExpandPlan.of("decode", "sm_90", (4,), 1, 1, torch.int8, CPU), "dtype", TypeError),
    ],
)
def test_bad_plans(plan: Callable[[], object], argument: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"^{argument}: "):
        plan()


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ([0, 65], "offsets[1] is 65, must be a multiple of 64 elements (128 bytes)"),
        ([-1, 0], "offsets[1] is 0 behind a -1"),
        ([-2], "offsets[0] is -2, must be -1 or"),
        ([9 * 1024], "pass the arena's end at 10000"),
        ([1024, 1088], "inside the chunk at [1024]"),
    ],
)
def test_misplaced_chunks(offsets: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        checked_chunks("offsets", offsets, 64, 10_000, 2)


def test_chunks_in_their_place() -> None:
    assert checked_chunks("offsets", [1024, 0, -1, -1], 64, 10_000, 2) == [1024, 0, -1, -1]
    checked_ranks([[0, -1], [64, 128]], [[0, -1], [64, 128]])
    checked_ranks([[0, 64]], [[0, -1], [64, 128]])


@pytest.mark.parametrize(("a", "b"), [([[0, -1]], [[0, 64]]), ([[0, 1], [0, -1]], [[0, -1], [0, -1]])])
def test_planes_that_nobody_writes_are_never_read(a: list[list[int]], b: list[list[int]]) -> None:
    with pytest.raises(ValueError, match=r"^b_offset: slice 0 has"):
        checked_ranks(a, b)


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_offsets_beyond_32_bits(phase: Phase, tmp_path: Path) -> None:
    """Chunks behind element 2^32 of the arena, rows of x and y more than 2^31 elements apart from the first."""
    made = site(64, (32, 16), 2, 2, lambda slot, s: 20, torch.float16)
    far = 2**32 + 2**20
    arena = sparse(tmp_path / "arena", far + made.arena.numel())
    arena[far:] = made.arena
    a, b = (torch.where(table >= 0, table + far, table) for table in (made.tables.a_offset, made.tables.b_offset))
    tables = LoraTables(a, b, made.tables.scale)
    moved = replace(made, arena=arena, tables=tables)
    x, y = made.batch(4)
    step = 2**30 + 16
    wide_x = sparse(tmp_path / "x", 3 * step + 64).as_strided((4, 64), (step, 1))
    wide_y = sparse(tmp_path / "y", 3 * step + 48).as_strided((4, 48), (step, 1))
    wide_x.copy_(x)
    wide_y.copy_(y)
    slots = [0, 1, 1, 0]
    want = made.reference(slots, x, y)
    near = made.run(phase, slots, x, y)
    moved.run(phase, slots, wide_x, wide_y)
    close(wide_y, want, torch.float16)
    assert torch.equal(wide_y, near)
