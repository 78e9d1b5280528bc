"""Log-softmax of a batch of rows against the plain loop, ties and all."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lorry_kernels.cpu import logprobs
from lorry_kernels.reference import logprobs_reference

TOLERANCE = {torch.float32: 2e-5}


@settings(max_examples=300, deadline=None)
@given(data=st.data(), vocabulary=st.integers(1, 30), rows=st.integers(1, 4))
def test_rows_equal_the_loop(data: st.DataObject, vocabulary: int, rows: int) -> None:
    # Few distinct values, so that ties stand at every edge.
    values = st.lists(st.integers(-6, 6).map(lambda i: i / 2), min_size=vocabulary, max_size=vocabulary)
    batch = [data.draw(values) for _ in range(rows)]
    tokens = [data.draw(st.integers(0, vocabulary - 1)) for _ in range(rows)]
    tops = [data.draw(st.integers(0, 22)) for _ in range(rows)]
    found = logprobs(torch.tensor(batch), tokens, tops)
    for logits, token, top, row in zip(batch, tokens, tops, found, strict=True):
        own, likeliest = logprobs_reference(logits, token, top)
        assert row.logprob == pytest.approx(own, abs=TOLERANCE[torch.float32])
        assert [i for i, _ in row.top] == [i for i, _ in likeliest]
        assert [p for _, p in row.top] == pytest.approx([p for _, p in likeliest], abs=TOLERANCE[torch.float32])
        assert dict(row.top).get(token, row.logprob) == row.logprob, "one id, one number"


def test_a_real_vocabulary_in_float32() -> None:
    generator = torch.Generator().manual_seed(3)
    logits = 10 * torch.randn(8, 49_152, generator=generator)
    tokens = torch.randint(0, 49_152, (8,), generator=generator).tolist()
    want = torch.log_softmax(logits.double(), -1)
    for i, row in enumerate(logprobs(logits, tokens, [20] * 8)):
        assert row.logprob == pytest.approx(float(want[i, tokens[i]]), abs=TOLERANCE[torch.float32])
        best = torch.topk(want[i], 20)
        assert [token for token, _ in row.top] == best.indices.tolist()
        assert [p for _, p in row.top] == pytest.approx(best.values.tolist(), abs=TOLERANCE[torch.float32])
        assert row.logprob == float(torch.tensor(row.logprob)), "what float32 holds, so that the wire changes nothing"


def test_no_rows() -> None:
    assert logprobs(torch.zeros(0, 5), [], []) == []
