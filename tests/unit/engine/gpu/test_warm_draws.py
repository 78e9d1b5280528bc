"""Whatever vocabulary an adapter brings, its draws launch kernels that were compiled before anybody waited."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lorry.engine.gpu.sampler import draw_on_device, warm_draws
from lorry.engine.sampler import SequenceState
from lorry.ids import BASE_SLOT, Generation, SequenceId
from lorry.request import SamplingParams
from lorry.scheduler.plan import NewSequence, SequenceStep
from lorry_kernels.ops import logprobs as logprobs_module
from lorry_kernels.ops import sampling_scan
from lorry_kernels.ops.launches import Launch, heard
from lorry_kernels.ops.logprobs import logprobs
from lorry_kernels.ops.sampling import SamplingFilters, SamplingRows, sample


def builds(call: Any) -> set[tuple[Any, ...]]:
    """What Triton compiles a kernel for: constexprs, types, and of numbers and addresses whether 16 divides them. None
    of it runs."""
    found: set[tuple[Any, ...]] = set()

    def kind(value: Any, free: bool) -> Any:
        if isinstance(value, Tensor):
            return (value.dtype, free or value.data_ptr() % 16 == 0)
        if free:
            return type(value)
        return (type(value), value == 1, value % 16 == 0) if isinstance(value, int) else value

    def told(launch: Launch) -> None:
        kernel = getattr(sampling_scan, launch.kernel, None) or getattr(logprobs_module, launch.kernel)
        named = zip(kernel.arg_names, launch.args, strict=False)
        free = kernel.kwargs.get("do_not_specialize", ())
        given = tuple(kind(value, name in free) for name, value in named)
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


@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_neither_does_it_matter_how_many_rows_are_drawn_at_once(rows: int, filtered: bool) -> None:
    """Parameters of one row are columns of one buffer that begin anywhere in it."""
    ids = [SequenceId(number) for number in range(rows)]
    asked = SamplingParams(temperature=0.7, top_p=0.9 if filtered else 1.0, top_k=5 if filtered else 0)
    states = {one: SequenceState.of(NewSequence(one, (1, 2), 2, asked)) for one in ids}
    steps = [SequenceStep(one, 0, 2, 1, BASE_SLOT, Generation(0), None, ()) for one in ids]
    warm = builds(lambda: warm_draws(torch.zeros(3, 320)))
    assert builds(lambda: draw_on_device(steps, states, torch.zeros(rows, 320))) <= warm
