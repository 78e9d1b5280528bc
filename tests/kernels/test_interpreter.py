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
