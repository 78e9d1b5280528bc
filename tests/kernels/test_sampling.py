"""Draws: Philox against the published vectors, the batch sampler against the plain loop."""

import collections
import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lorry_kernels.cpu import RowSampling, sample, sampling
from lorry_kernels.reference import philox_4x32, sample_reference, uniform


@pytest.mark.parametrize(
    ("key", "counter", "want"),
    [
        ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF, 0xFFFFFFFF),
            (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0xA4093822, 0x299F31D0),
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(
    key: tuple[int, int], counter: tuple[int, int, int, int], want: tuple[int, int, int, int]
) -> None:
    """The known-answer vectors that the authors publish with Random123 (philox4x32, 10 rounds)."""
    assert philox_4x32(key, counter) == want


@pytest.fixture(scope="module")
def small_window() -> Iterator[None]:
    """So that rows of a few dozen ids meet both of the sampler's windows."""
    kept, sampling.WINDOW = sampling.WINDOW, 4
    yield
    sampling.WINDOW = kept


@pytest.mark.usefixtures("small_window")
@settings(max_examples=400, deadline=None)
@given(
    logits=st.lists(st.integers(-40, 40).map(lambda i: i / 8), min_size=1, max_size=50),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 3, 100]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(1, 5000),
)
def test_rows_equal_the_loop(
    logits: list[float], temperature: float, top_k: int, top_p: float, min_p: float, seed: int, position: int
) -> None:
    assert sampling.WINDOW == 4
    row = RowSampling(temperature, top_k, top_p, min_p, seed, 0, position)
    other = RowSampling(1.0, 0, 1.0, 0.0, 7, 0, 3)
    tensor = torch.tensor([logits, logits])
    want = sample_reference(
        logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed, choice=0, position=position
    )
    tokens, finite = sample(tensor, [row, other])
    assert finite == [True, True]
    assert tokens[0] == want
    assert sample(tensor.flip(0), [other, row])[0][1] == want, "a draw depends on its own row only"


def test_a_row_that_is_not_finite_is_named_and_no_other_changes() -> None:
    clean = torch.tensor([[0.0, 3.0, 1.0], [2.0, 0.0, 1.0], [1.0, 0.0, 5.0]])
    for poison in (math.nan, math.inf, -math.inf):
        logits = clean.clone()
        logits[1, 2] = poison
        tokens, finite = sample(logits, [RowSampling(0.0, 0, 1.0, 0.0, 0, 0, 1)] * 3)
        assert finite == [True, False, True]
        assert (tokens[0], tokens[2]) == (1, 2)


def test_draws_follow_the_distribution() -> None:
    """4,000 positions of one seed; chi-squared with 3 degrees of freedom stays under its 0.9999 quantile."""
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]])
    want = torch.softmax(logits[0], 0).tolist()
    counts = collections.Counter(
        sample(logits, [RowSampling(1.0, 0, 1.0, 0.0, 1234, 0, position)])[0][0] for position in range(4000)
    )
    statistic = sum((counts[i] - 4000 * p) ** 2 / (4000 * p) for i, p in enumerate(want))
    assert statistic < 21.1


def test_uniform_separates_seed_choice_and_position() -> None:
    draws = {uniform(seed, choice, position) for seed in (1, 2, 2**40) for choice in (0, 1) for position in range(50)}
    assert len(draws) == 300
    assert all(0.0 <= draw < 1.0 for draw in draws)
