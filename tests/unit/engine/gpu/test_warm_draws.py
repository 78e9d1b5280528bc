"""Whatever vocabulary an adapter brings, its draws launch kernels that were compiled before anybody waited."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lorry.engine.gpu.sampler import warm_draws
from lorry_kernels.ops import logprobs as logprobs_module
from lorry_kernels.ops import sampling_scan
from lorry_kernels.ops.launches import Launch, heard
from lorry_kernels.ops.logprobs import logprobs
from lorry_kernels.ops.sampling import SamplingFilters, SamplingRows, sample

NOT_SPECIALISED = "chunks"


def builds(call: Any) -> set[tuple[Any, ...]]:
    """What Triton compiles a kernel for: constexprs, types, and of numbers and addresses whether 16 divides them. None
    of it runs."""
    found: set[tuple[Any, ...]] = set()

    def kind(value: Any) -> Any:
        if isinstance(value, Tensor):
            return (value.dtype, value.data_ptr() % 16 == 0)
        return (type(value), value == 1, value % 16 == 0) if isinstance(value, int) else value

    def told(launch: Launch) -> None:
        kernel = getattr(sampling_scan, launch.kernel, None) or getattr(logprobs_module, launch.kernel)
        named = zip(kernel.arg_names, launch.args, strict=False)
        given = tuple(kind(value) for name, value in named if name != NOT_SPECIALISED)
        found.add((launch.kernel, given, tuple(sorted(launch.kwargs.items()))))

    with heard(told):
        call()
    return found


def draws(vocabulary: int, rows: int) -> None:
    logits = torch.zeros(rows, vocabulary)
    ones, zeros = torch.ones(rows, dtype=torch.float64), torch.zeros(rows, dtype=torch.int64)
    filters = SamplingFilters(zeros.to(torch.int32), ones, ones * 0.1)
    for how in (None, SamplingRows(ones, zeros, zeros, zeros), SamplingRows(ones, zeros, zeros, zeros, filters)):
        tokens, _ = sample(logits, how)
    logprobs(logits, tokens)


@pytest.mark.parametrize("base", [320, 4099])
@pytest.mark.parametrize("own", [320, 321, 336, 4096, 5000, 5001])
def test_every_vocabularys_kernels_are_compiled_at_the_start(base: int, own: int) -> None:
    warm = builds(lambda: warm_draws(torch.zeros(3, base)))
    assert builds(lambda: draws(own, 2)) <= warm


def test_one_vocabulary_alone_would_not_do() -> None:
    """Or there would be nothing to warm."""
    assert not builds(lambda: draws(321, 3)) <= builds(lambda: draws(320, 3))
