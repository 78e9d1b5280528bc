"""Builds with one fault each that the ahead-of-time gate must name, called by the fault. See ``aot_samples``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import triton
import triton.language as tl

from lorry_kernels.aot.build import Build, Expect, ModelShape
from lorry_kernels.ops.launch import Launch
from tests.kernels.aot_samples import GOOD


@triton.jit(do_not_specialize=["k"])
def no_dot(weights: tl.tensor, y: tl.tensor, k: tl.tensor, BK: tl.constexpr) -> None:
    """Sums a row without a tensor core; rows begin anywhere, since k may be anything."""
    inner = tl.arange(0, BK)
    row = tl.load(weights + tl.program_id(0).to(tl.int64) * 1024 + inner, mask=inner < k, other=0.0)
    tl.store(y + tl.program_id(0), tl.sum(row.to(tl.float32)))


@triton.jit
def forgotten(y: tl.tensor) -> None:
    """In no build."""
    tl.store(y, 0.0)


_ONE_WARP = Launch(1, 2)
_NO_DOT = Build(
    "tensor cores",
    no_dot,
    {"weights": "*bf16", "y": "*fp32", "k": "i32"},
    {"BK": 2048},
    frozenset({"weights", "y"}),
    Launch(4, 1),
    Expect(tensor_cores=True),
)
FAULTS = (
    replace(GOOD, op="hint", constexprs={**GOOD.constexprs, "HINT": False}),
    replace(GOOD, op="divisible", divisible=frozenset()),
    replace(GOOD, op="one divisible", divisible=GOOD.divisible - {"k"}),
    replace(GOOD, op="shared", constexprs={**GOOD.constexprs, "BM": 16, "BN": 256, "BK": 256}, launch=Launch(8, 4)),
    _NO_DOT,
    replace(GOOD, op="absent", expect=Expect(tensor_cores=True, wide_loads_of=("weights", "k"))),
    replace(GOOD, op="type", signature={**GOOD.signature, "weights": "*i32"}),
    replace(_NO_DOT, op="unspecialized", divisible=frozenset({"weights", "y", "k"})),
    replace(GOOD, op="missing", signature={name: kind for name, kind in GOOD.signature.items() if name != "rows"}),
)


def builds(shape: ModelShape, arch: str) -> Iterator[Build]:
    """Every fault."""
    yield from FAULTS
    if arch == "sm_90":
        yield replace(GOOD, op="wait", launch=replace(GOOD.launch, dependent=True))
    rows = 128 if arch.startswith("gfx") else 32  # A warp of AMD has twice the registers.
    yield replace(GOOD, op="spills", constexprs={**GOOD.constexprs, "BM": rows, "BN": 256, "BK": 32}, launch=_ONE_WARP)
