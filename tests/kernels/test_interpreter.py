"""The interpreter as tests use it leaves Triton's language as it found it."""

from __future__ import annotations

import inspect

import torch
import triton.language as tl
from triton.runtime import interpreter

from lorry_kernels.ops.silu_mul import silu_mul


def test_a_launch_leaves_the_language_whole() -> None:
    assert not interpreter.interpreter_builder.options.sanitize_overflow, "it was hastened"
    before = dict(inspect.getmembers(tl))
    found = silu_mul(torch.ones(2, 8))
    assert torch.allclose(found, torch.full((2, 4), 0.7310586))
    after = dict(inspect.getmembers(tl))
    assert {name for name in before if after[name] is not before[name]} == set()


def test_types_and_values_that_are_made_again_are_the_same_and_of_no_other_shape_or_element() -> None:
    for _ in range(2):
        for element in (tl.float16, tl.int32, tl.pointer_type(tl.float16)):
            for shape in ([16, 8], [8, 16], [128], [16, tl.constexpr(8)]):
                found = tl.block_type(element, shape)
                sizes = [size.value if isinstance(size, tl.constexpr) else size for size in shape]
                assert (found.scalar, list(found.shape), found.numel) == (element, sizes, 128)
                assert found.name == f"<{found.shape}, {element}>"
                value = tl.tensor(None, found)
                assert [size.value for size in value.shape] == sizes
                assert (value.numel.value, value.dtype, value.type) == (128, element, found)
                want = "uint64" if element.is_ptr() else {"fp16": "float16"}.get(element.name, element.name)
                assert interpreter._get_np_dtype(found).name == want
        scalar = tl.tensor(None, tl.int64)
        assert (list(scalar.shape), scalar.numel.value, scalar.dtype) == ([], 1, tl.int64)
