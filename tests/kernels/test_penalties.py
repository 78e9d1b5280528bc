"""Penalties and bias against the plain loop, counted all at once and token by token."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lorry_kernels.cpu import Penalties, RowSampling, sample
from lorry_kernels.reference import adjust_reference, sample_reference

VOCABULARY = 12
ids = st.lists(st.integers(0, VOCABULARY - 1), max_size=40)
rows = st.lists(
    st.floats(-50, 50, width=32).filter(lambda x: x == 0 or abs(x) > 1e-3), min_size=VOCABULARY, max_size=VOCABULARY
)
knobs = st.fixed_dictionaries(
    {
        "repetition": st.sampled_from([1.0, 1.3, 0.5, 8.0]),
        "frequency": st.sampled_from([0.0, 0.1, -0.5, 2.0]),
        "presence": st.sampled_from([0.0, 0.7, -1.5]),
        "bias": st.dictionaries(st.integers(0, VOCABULARY - 1), st.floats(-100, 100, width=32), max_size=4).map(
            lambda pairs: tuple(sorted(pairs.items()))
        ),
    }
)


@settings(max_examples=300, deadline=None)
@given(logits=rows, prompt=ids, output=ids, knobs=knobs)
def test_adjusted_logits_equal_the_loop_exactly(
    logits: list[float], prompt: list[int], output: list[int], knobs: dict[str, float]
) -> None:
    want = adjust_reference(logits, prompt, output, **knobs)  # type: ignore[arg-type]  # knobs of one table
    whole = Penalties(prompt, output, **knobs)  # type: ignore[arg-type]  # knobs of one table
    grown = Penalties(prompt, **knobs)  # type: ignore[arg-type]  # knobs of one table
    row = torch.tensor(logits)
    for token in output:
        grown.adjust(row)
        grown.add(token)
    assert whole.adjust(row).tolist() == want
    assert grown.adjust(row).tolist() == want
    assert row.tolist() == logits, "the model's logits stay as they are"


@settings(max_examples=200, deadline=None)
@given(
    logits=rows,
    prompt=ids,
    output=ids,
    knobs=knobs,
    temperature=st.sampled_from([0.0, 0.7]),
    filters=st.sampled_from([(0, 1.0, 0.0), (3, 1.0, 0.0), (0, 0.6, 0.0), (0, 1.0, 0.2)]),
    seed=st.integers(0, 2**64 - 1),
)
def test_draws_equal_the_loops_and_no_other_row_notices(
    logits: list[float],
    prompt: list[int],
    output: list[int],
    knobs: dict[str, float],
    temperature: float,
    filters: tuple[int, float, float],
    seed: int,
) -> None:
    top_k, top_p, min_p = filters
    adjusted = adjust_reference(logits, prompt, output, **knobs)  # type: ignore[arg-type]  # knobs of one table
    choose = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": seed}
    where = {"choice": 2, "position": len(prompt) + len(output)}
    want = sample_reference(adjusted, **choose, **where)  # type: ignore[arg-type]  # knobs of one table
    plain = sample_reference(logits, **choose, **where)  # type: ignore[arg-type]  # knobs of one table
    penalties = Penalties(prompt, output, **knobs)  # type: ignore[arg-type]  # knobs of one table
    row = RowSampling(**choose, **where, penalties=penalties)  # type: ignore[arg-type]  # knobs of one table
    mate = RowSampling(**choose, **where)  # type: ignore[arg-type]  # knobs of one table
    batch = torch.tensor([logits] * 3)
    assert sample(batch, [mate, row, mate]) == ([plain, want, plain], [True] * 3)
    assert batch.tolist() == [logits] * 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "knobs",
    [
        {"repetition": 5e-324},
        {"repetition": 1.7e308},
        {"frequency": 1.7e308, "presence": -1.7e308},
        {"frequency": -1.7e308, "repetition": 5e-324},
        {"bias": tuple((i, 1.7e308 * (-1) ** i) for i in range(4))},
        {"bias": tuple((i, -1.7e308) for i in range(4)), "repetition": 1.7e308, "frequency": 1.7e308},
    ],
)
def test_the_wildest_finite_values_still_choose_an_id(temperature: float, knobs: dict[str, float]) -> None:
    logits = [3e38, -3e38, 0.0, 1.0]
    penalties = Penalties([0, 1], [1, 2, 2], **knobs)  # type: ignore[arg-type]  # knobs of one table
    adjusted = penalties.adjust(torch.tensor(logits))
    assert torch.isfinite(adjusted).all()
    assert adjusted.tolist() == adjust_reference(
        torch.tensor(logits).tolist(),
        [0, 1],
        [1, 2, 2],
        **knobs,  # type: ignore[arg-type]  # knobs of one table
    )
    row = RowSampling(temperature, 0, 0.9, 0.1, 5, 0, 6, penalties)
    (token,), finite = sample(torch.tensor([logits]), [row])
    assert finite == [True]
    assert 0 <= token < 4


def test_a_row_that_the_model_made_infinite_stays_a_fault_whatever_its_bias() -> None:
    logits = torch.tensor([[0.0, math.inf, 1.0], [0.0, -math.inf, 1.0]])
    row = RowSampling(0.0, 0, 1.0, 0.0, 0, 0, 1, Penalties([1], bias=((1, -5.0),), repetition=2.0))
    assert sample(logits, [row, row]) == ([0, 0], [False, False])
