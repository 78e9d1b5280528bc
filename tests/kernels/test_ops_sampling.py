"""Tokens drawn by the kernels against the CPU path, row by row, with the rows counted that lie within the bound."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lorry_kernels.cpu import RowSampling
from lorry_kernels.cpu import sample as cpu_sample
from lorry_kernels.ops.sampling import SamplingFilters, SamplingRows, margin_bound, sample, workspace_elements
from lorry_kernels.reference import sample_reference, sampling_margin, uniform
from tests.kernels.pairwise import pairwise

PLAIN = RowSampling(1.0, 0, 1.0, 0.0, 5, 0, 1)
GREEDY = replace(PLAIN, temperature=0.0)


def on_device(rows: Sequence[RowSampling], filtered: bool = True) -> SamplingRows:
    def column(of: Callable[[RowSampling], float], dtype: torch.dtype) -> Tensor:
        return torch.tensor([of(row) for row in rows], dtype=dtype)

    filters = SamplingFilters(
        column(lambda row: row.top_k, torch.int32),
        column(lambda row: row.top_p, torch.float64),
        column(lambda row: row.min_p, torch.float64),
    )
    return SamplingRows(
        column(lambda row: row.temperature, torch.float64),
        # The same 64 bits, as torch's signed type has them.
        column(lambda row: row.seed - (1 << 64) * (row.seed >> 63), torch.int64),
        column(lambda row: row.choice, torch.int64),
        column(lambda row: row.position, torch.int64),
        filters if filtered else None,
    )


def near_edges(logits: Tensor, rows: Sequence[RowSampling]) -> int:
    """How many rows' tokens the promise leaves open; all others must be the CPU's and, where they are not many ids,
    the plain loop's."""
    tokens, finite = sample(logits, on_device(rows))
    want, _ = cpu_sample(logits.float(), rows)
    assert finite.all()
    open_rows = 0
    for i, row in enumerate(rows):
        values = logits[i].float().tolist()
        if _margin(values, row) <= 2 * margin_bound(len(values)):
            open_rows += 1
            continue
        assert int(tokens[i]) == want[i], row
        assert int(tokens[i]) == _token(values, row), row
    return open_rows


def _token(values: list[float], row: RowSampling) -> int:
    return sample_reference(
        values,
        temperature=row.temperature,
        top_k=row.top_k,
        top_p=row.top_p,
        min_p=row.min_p,
        seed=row.seed,
        choice=row.choice,
        position=row.position,
    )


def _margin(values: list[float], row: RowSampling) -> float:
    return sampling_margin(
        values,
        temperature=row.temperature,
        top_k=row.top_k,
        top_p=row.top_p,
        min_p=row.min_p,
        seed=row.seed,
        choice=row.choice,
        position=row.position,
    )


def some_rows(count: int, seed: int) -> list[RowSampling]:
    pick = random.Random(seed)
    return [
        RowSampling(
            pick.choice([0.05, 0.7, 1.0, 3.0]),
            pick.choice([0, 1, 5, 50, 3000]),
            pick.choice([1.0, 0.95, 0.5, 0.02]),
            pick.choice([0.0, 0.02, 0.3]),
            pick.getrandbits(64),
            pick.randrange(4),
            pick.randrange(1, 100_000),
        )
        for _ in range(count)
    ]


def noise(rows: int, vocabulary: int, dtype: torch.dtype, seed: int = 0, scale: float = 4.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(rows, vocabulary, generator=generator)).to(dtype)


def test_every_pair_of_parameters() -> None:
    cases = pairwise(
        {
            "temperature": [0.0, 0.3, 1.0, 1e6],
            "top_k": [0, 1, 999, 5000],
            "top_p": [1.0, 0.9, 1e-9],
            "min_p": [0.0, 0.05, 1.0],
            "seed": [0, 2**63 + 11, 2**64 - 1],
        }
    )
    rows = [RowSampling(**case, choice=i % 3, position=17 * i) for i, case in enumerate(cases)]
    assert near_edges(noise(len(rows), 1000, torch.float16), rows) <= 1


def test_float32_logits() -> None:
    assert near_edges(noise(5, 1000, torch.float32), some_rows(5, 1)) == 0


def test_several_chunks() -> None:
    """9,001 ids: three chunks, the last of one partial block."""
    logits = noise(3, 9001, torch.float16, 2)
    logits[0, 9000] = 30.0
    assert near_edges(logits, some_rows(3, 2)) == 0


@pytest.mark.parametrize("filtered", [False, True])
def test_a_flat_row_is_drawn_by_id(filtered: bool) -> None:
    """All logits equal, so that the place among equals is all that there is to find, in whichever chunk."""
    logits = torch.full((3, 5000), 2.5, dtype=torch.float16)
    rows = [replace(PLAIN, position=position) for position in (1, 2, 6)]
    tokens, _ = sample(logits, on_device(rows, filtered))
    want, _ = cpu_sample(logits.float(), rows)
    assert tokens.tolist() == want
    assert max(want) >= 4096 > min(want), "both chunks are met"


def test_filters_that_are_not_given_and_filters_that_keep_all_are_one() -> None:
    logits = noise(2, 700, torch.float16, 3)
    rows = [PLAIN, replace(PLAIN, temperature=0.4, seed=2**40)]
    assert sample(logits, on_device(rows, False))[0].tolist() == cpu_sample(logits.float(), rows)[0]


def test_a_target_on_an_edge_is_the_next_ids() -> None:
    """This draw is 0.75 sharp: of 4 and of 8 equals the ids with 3 and 6 before them, exactly."""
    row = replace(PLAIN, seed=0, position=150_078)
    assert uniform(0, 0, 150_078) == 0.75
    assert sample(torch.zeros(1, 4), on_device([row], False))[0].tolist() == [3]
    assert sample(torch.zeros(1, 8).half(), on_device([row], False))[0].tolist() == [6]


def test_top_k_cuts_among_equals() -> None:
    """The same draw of 0.75 from 8 equals, and from the half of them that top-p leaves of more than there are."""
    row = replace(PLAIN, seed=0, position=150_078)
    rows = [*(replace(row, top_k=top_k) for top_k in (0, 1, 3, 8, 9)), replace(row, top_k=100, top_p=0.5)]
    assert sample(torch.zeros(6, 8).half(), on_device(rows))[0].tolist() == [6, 0, 2, 6, 6, 3]


def test_ties_at_every_edge() -> None:
    """Few distinct values: top-k and top-p cut through groups of equals. Integer masses make these exact."""
    pick = random.Random(4)
    logits = torch.tensor([[pick.randrange(-3, 4) / 2 for _ in range(60)] for _ in range(6)], dtype=torch.float16)
    logits[0, ::2], logits[0, 1::2] = 0.0, -0.0
    rows = [replace(row, top_k=7 + i, temperature=0.8) for i, row in enumerate(some_rows(6, 5))]
    assert near_edges(logits, rows) <= 1


def test_greedy_takes_the_lowest_id_of_equals() -> None:
    logits = noise(4, 50_000, torch.float32, 6)
    for row, ids in enumerate(([49_999, 3], [4096, 4095], [0], [8192, 20_000])):
        logits[row, ids] = 40.0
    logits[2] = -0.0
    logits[2, 5:] = 0.0
    tokens, finite = sample(logits)
    assert tokens.tolist() == [3, 4095, 0, 8192]
    assert finite.all()


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_row_that_is_not_finite_is_named_and_no_other_notices(poison: float) -> None:
    logits = noise(4, 600, torch.float16, 7)
    rows = [GREEDY, PLAIN, GREEDY, PLAIN]
    clean = sample(logits, on_device(rows, False))[0].tolist()
    logits[0, 599] = logits[1, 0] = poison
    tokens, finite = sample(logits, on_device(rows, False))
    assert tokens.tolist() == [0, 0, *clean[2:]]
    assert finite.tolist() == [False, False, True, True]


def test_a_row_alone_is_the_row_in_any_batch_whatever_the_workspace_held() -> None:
    """Rows of a wider buffer too."""
    wide = noise(4, 1500, torch.float16, 8)
    logits, rows = wide[:, 100:1400], some_rows(4, 9)
    want = sample(logits, on_device(rows))[0].tolist()
    order = [2, 0, 3, 1]
    again = sample(logits[order], on_device([rows[i] for i in order]))[0].tolist()
    assert again == [want[i] for i in order]
    for garbage in (-1, 2**62):
        workspace = torch.full((workspace_elements(1, 1300) + 5,), garbage, dtype=torch.int64)
        assert sample(logits[1:2], on_device(rows[1:2]), workspace=workspace)[0].tolist() == want[1:2]


def test_rows_that_lie_beyond_int32() -> None:
    store = torch.empty(2**31 + 64, dtype=torch.float16)
    logits = store.as_strided((3, 50), (2**30, 1))
    logits.copy_(noise(3, 50, torch.float16, 10))
    assert sample(logits)[0].tolist() == logits.float().argmax(-1).tolist()
    rows = [PLAIN] * 3
    assert sample(logits, on_device(rows, False))[0].tolist() == cpu_sample(logits.float(), rows)[0]


def test_extreme_temperatures_stay_finite() -> None:
    logits = noise(2, 100, torch.float16, 11)
    rows = [replace(PLAIN, temperature=5e-324), replace(PLAIN, temperature=1e300)]
    assert sample(logits, on_device(rows, False))[0].tolist() == cpu_sample(logits.float(), rows)[0]


def test_no_rows() -> None:
    tokens, finite = sample(torch.zeros(0, 9), on_device([]))
    assert (tokens.shape, finite.shape) == ((0,), (0,))


@pytest.mark.soak
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("vocabulary", [1, 2, 513, 4096, 4097, 20_000])
def test_many_rows(vocabulary: int, dtype: torch.dtype) -> None:
    rows = some_rows(20, vocabulary)
    assert near_edges(noise(20, vocabulary, dtype, vocabulary), rows) <= 1


LOGITS = torch.zeros(2, 10)
ROWS = on_device([PLAIN, PLAIN])
FILTERS = ROWS.filters


def _filters(**changed: Tensor) -> SamplingRows:
    assert FILTERS is not None
    return replace(ROWS, filters=replace(FILTERS, **changed))


@pytest.mark.parametrize(
    ("call", "error", "argument"),
    [
        (lambda: sample(LOGITS.double()), TypeError, "logits"),
        (lambda: sample(LOGITS[0]), ValueError, "logits"),
        (lambda: sample(LOGITS.T), ValueError, "logits"),
        (lambda: sample(torch.zeros(1, 0)), ValueError, "logits"),
        (lambda: sample(torch.zeros(1, 2**18 + 1)), ValueError, "logits"),
        (lambda: sample(LOGITS.expand(65536, 2, 10)[:, 0]), ValueError, "logits"),
        (lambda: sample(LOGITS, replace(ROWS, temperature=ROWS.temperature.float())), TypeError, "rows.temperature"),
        (lambda: sample(LOGITS, replace(ROWS, seed=ROWS.seed[:1])), ValueError, "rows.seed"),
        (lambda: sample(LOGITS, replace(ROWS, choice=ROWS.choice.int())), TypeError, "rows.choice"),
        (lambda: sample(LOGITS, replace(ROWS, position=ROWS.position.to("meta"))), TypeError, "rows.position"),
        (lambda: sample(LOGITS, _filters(top_k=ROWS.seed)), TypeError, "rows.filters.top_k"),
        (lambda: sample(LOGITS, _filters(top_p=ROWS.temperature.repeat(2)[::2])), ValueError, "rows.filters.top_p"),
        (lambda: sample(LOGITS, _filters(min_p=ROWS.temperature[:0])), ValueError, "rows.filters.min_p"),
        (lambda: sample(LOGITS, workspace=torch.zeros(5, dtype=torch.int64)), ValueError, "workspace"),
        (lambda: sample(LOGITS, workspace=torch.zeros(500)), TypeError, "workspace"),
    ],
)
def test_bad_calls_name_the_argument(call: Callable[[], object], error: type[Exception], argument: str) -> None:
    with pytest.raises(error, match=f"^{argument}: "):
        call()
