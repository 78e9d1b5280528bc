"""Logprob and rank of one id a row against the plain loop."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from lorry_kernels.cpu import logprobs as cpu_logprobs
from lorry_kernels.ops.logprobs import logprobs
from lorry_kernels.reference import logprobs_reference

TOLERANCE = 2e-5
"""As the CPU path's: a float32 logit of this size is known no better."""


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("vocabulary", [1, 1000, 4097, 50_000])
def test_rows_equal_the_loop_and_the_cpu(vocabulary: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(vocabulary)
    # Few distinct values, so that many ids tie with the token's.
    logits = (torch.randint(-80, 80, (3, vocabulary), generator=generator) / 8).to(dtype)
    tokens = torch.tensor([0, vocabulary - 1, vocabulary // 2])
    found, ranks = logprobs(logits, tokens)
    on_cpu = cpu_logprobs(logits.float(), tokens.tolist(), [0] * 3)
    for i, token in enumerate(tokens.tolist()):
        values = logits[i].float().tolist()
        want, order = logprobs_reference(values, token, vocabulary)
        assert float(found[i]) == pytest.approx(want, abs=TOLERANCE)
        assert float(found[i]) == pytest.approx(on_cpu[i].logprob, abs=TOLERANCE)
        assert order[int(ranks[i]) - 1][0] == token, "its place among all, from 1"


def test_a_row_is_its_own_bit_for_bit() -> None:
    wide = torch.randn(4, 5100, generator=torch.Generator().manual_seed(1)).half()
    logits, tokens = wide[:, 50:-50], torch.tensor([4999, 0, 4095, 4096])
    want, ranks = logprobs(logits, tokens)
    order = [2, 0, 3]
    found, again = logprobs(logits[order], tokens[order])
    assert torch.equal(found, want[order])
    assert torch.equal(again, ranks[order])
    logits[1, 7] = math.nan
    beside, again = logprobs(logits, tokens)
    assert torch.equal(beside[[0, 2, 3]], want[[0, 2, 3]])
    assert torch.equal(again[[0, 2, 3]], ranks[[0, 2, 3]])


def test_an_id_that_no_row_has_is_named() -> None:
    found, ranks = logprobs(torch.zeros(3, 10), torch.tensor([10, -1, 2**40]))
    assert found.isnan().all()
    assert ranks.tolist() == [0, 0, 0]


# numpy, which the interpreter runs on, says aloud what a GPU does without a word.
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_large_logits_and_no_rows() -> None:
    found, ranks = logprobs(torch.tensor([[3e38, -3e38, 0.0]]), torch.tensor([0]))
    assert (found.tolist(), ranks.tolist()) == ([0.0], [1])
    assert logprobs(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))[0].shape == (0,)


LOGITS, TOKENS = torch.zeros(2, 10), torch.zeros(2, dtype=torch.int64)


@pytest.mark.parametrize(
    ("call", "error", "argument"),
    [
        (lambda: logprobs(LOGITS.double(), TOKENS), TypeError, "logits"),
        (lambda: logprobs(LOGITS[0], TOKENS), ValueError, "logits"),
        (lambda: logprobs(torch.zeros(10, 2).T, TOKENS), ValueError, "logits"),
        (lambda: logprobs(torch.zeros(2, 0), TOKENS), ValueError, "logits"),
        (lambda: logprobs(LOGITS, TOKENS.int()), TypeError, "tokens"),
        (lambda: logprobs(LOGITS, TOKENS[:1]), ValueError, "tokens"),
    ],
)
def test_bad_calls_name_the_argument(call: Callable[[], object], error: type[Exception], argument: str) -> None:
    with pytest.raises(error, match=f"^{argument}: "):
        call()
