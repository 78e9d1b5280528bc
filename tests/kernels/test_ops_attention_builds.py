"""What attention's ``builds`` say is what its wrappers launch: the ahead-of-time gate judges nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from lorry_kernels.aot.build import SHAPES, Build, ModelShape
from lorry_kernels.ops import decode_plan, kv_write, paged_decode, paged_prefill, prefill_plan
from lorry_kernels.ops.decode_plan import DecodePlan
from lorry_kernels.ops.paged_decode import DecodeWorkspace
from lorry_kernels.ops.prefill_plan import PrefillPlan
from tests.kernels.paged import CPU

PAGE = 64
KERNELS = {
    decode_plan: ("_decode_plan",),
    prefill_plan: ("_prefill_plan",),
    kv_write: ("_kv_write",),
    paged_decode: ("_paged_decode", "_merge_splits"),
    paged_prefill: ("_paged_prefill",),
}
TYPES = {torch.float16: "*fp16", torch.float32: "*fp32", torch.int32: "*i32", torch.int64: "*i64"}


class Recorder:
    """Stands where a kernel does and keeps what it would be launched with."""

    def __init__(self, kernel: Any, kept: dict[str, tuple[Recorder, dict[str, Any]]]) -> None:
        self.kernel, self.kept = kernel, kept
        self.arg_names: list[str] = kernel.arg_names

    def __getitem__(self, grid: tuple[int, ...]) -> Recorder:
        return self

    def __call__(self, *positional: Any, **named: Any) -> None:
        values = dict(zip(self.arg_names, positional, strict=False))
        assert not set(values) & set(named)
        self.kept[self.kernel.__name__] = (self, values | named)


def launch_all(shape: ModelShape) -> None:
    heads, kv_heads, dim = shape.shard_heads, shape.shard_kv_heads, shape.head_dim
    arena = torch.zeros(4, 2, 2, kv_heads, PAGE, dim, dtype=torch.float16)
    pages = (arena[:, 1, 0], arena[:, 1, 1])
    fused = torch.zeros(2, heads + 2 * kv_heads, dim, dtype=torch.float16)
    q, k, v = fused[:, :heads], fused[:, heads:-kv_heads], fused[:, -kv_heads:]
    kv_write.kv_write(k, v, *pages, torch.zeros(2, dtype=torch.int64))
    table = torch.zeros(2, 10, dtype=torch.int32)
    lengths = torch.ones(2, dtype=torch.int32)
    plan = DecodePlan.allocate(2, 10, PAGE, device=CPU)
    plan.fill(lengths)
    paged_decode.paged_decode(q, *pages, table, plan, DecodeWorkspace.allocate(plan.capacity, heads, dim, device=CPU))
    blocks = PrefillPlan.allocate(2, 2, heads, kv_heads, dim, device=CPU)
    blocks.fill(torch.tensor([0, 1, 2], dtype=torch.int32), lengths)
    paged_prefill.paged_prefill(q, *pages, table, blocks)


def built(modules: Iterable[ModuleType], shape: ModelShape) -> list[Build]:
    found: list[Build] = []
    for module in modules:
        options = {} if module in (decode_plan, prefill_plan) else {"dtype": "fp16", "page_tokens": (PAGE,)}
        found += module.builds(shape, "interpreter", **options)
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_what_is_launched_is_what_is_built(shape: ModelShape, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, tuple[Recorder, dict[str, Any]]] = {}
    for module, names in KERNELS.items():
        for name in names:
            monkeypatch.setattr(module, name, Recorder(getattr(module, name), kept))
    launch_all(shape)
    builds = built(KERNELS, shape)
    assert sorted(kept) == sorted(name for names in KERNELS.values() for name in names)
    assert len(builds) == len(kept)
    for build in builds:
        recorder, values = kept[build.kernel.kernel.__name__]
        assert build.kernel is recorder
        expected = {**build.constexprs, **build.launch.options}
        assert {name: values.pop(name) for name in expected} == expected
        assert set(values) == set(build.signature)
        assert [name for name in recorder.arg_names if name in values] == list(values)
        for name, value in values.items():
            if isinstance(value, Tensor):
                assert TYPES[value.dtype] == build.signature[name]
            else:
                assert build.signature[name] == "fp32" if isinstance(value, float) else build.signature[name][0] == "i"
            if name in build.divisible:
                assert (value.data_ptr() if isinstance(value, Tensor) else value) % 16 == 0
