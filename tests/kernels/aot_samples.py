"""A small kernel that the ahead-of-time gate finds nothing to say of. ``aot_faults`` makes it worse.

Not a test module: it is named to ``python -m lorry_kernels.aot``, in a process without ``TRITON_INTERPRET``.
"""

from __future__ import annotations

from collections.abc import Iterator

import triton
import triton.language as tl

from lorry_kernels.aot.build import Build, Expect, ModelShape
from lorry_kernels.ops.launch import Launch


@triton.jit
def product(
    x: tl.tensor,
    weights: tl.tensor,
    offsets: tl.tensor,
    y: tl.tensor,
    rows: tl.tensor,
    k: tl.tensor,
    n: tl.tensor,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    HINT: tl.constexpr,
) -> None:
    """y [programs, rows, n] = x [rows, k] times a matrix [n, k] that lies where ``offsets`` says."""
    program = tl.program_id(0)
    begin = tl.load(offsets + program)
    if HINT:
        begin = tl.multiple_of(begin, 16)
    m = tl.arange(0, BM)
    columns = tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for first in range(0, k, BK):
        inner = first + tl.arange(0, BK)
        held = (m[:, None] < rows) & (inner[None, :] < k)
        left = tl.load(x + m[:, None].to(tl.int64) * k + inner[None, :], mask=held, other=0.0)
        there = (columns[None, :] < n) & (inner[:, None] < k)
        right = tl.load(weights + begin + columns[None, :].to(tl.int64) * k + inner[:, None], mask=there, other=0.0)
        total = tl.dot(left, right, total)
    place = y + program.to(tl.int64) * rows * n + m[:, None] * n + columns[None, :]
    tl.store(place, total.to(y.dtype.element_ty), mask=(m[:, None] < rows) & (columns[None, :] < n))


_SIGNATURE = {"x": "*bf16", "weights": "*bf16", "offsets": "*i64", "y": "*bf16", "rows": "i32", "k": "i32", "n": "i32"}
GOOD = Build(
    "product",
    product,
    _SIGNATURE,
    {"BM": 16, "BN": 32, "BK": 64, "HINT": True},
    frozenset({"x", "weights", "offsets", "y", "k", "n"}),
    Launch(4, 3),
    Expect(tensor_cores=True, wide_loads_of=("weights",)),
)


def builds(shape: ModelShape, arch: str) -> Iterator[Build]:
    """As an ops module has it."""
    yield GOOD
