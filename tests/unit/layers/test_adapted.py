"""Rows with extras against the obvious loop in float64; rows without any are the bits that they would be."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lorry.adapters.image.gains import dora_embedding_gain, dora_gain
from lorry.layers.adapted import Adapted, ExtraRows, adapted_logits, extra_rows
from lorry.layers.extras import AdapterExtras, EmbeddingExtras, HeadExtras, SiteVectors
from lorry.layers.linear import PlainLinear
from lorry.layers.sites import Site

K, WIDTHS = 12, (10, 4, 4)
N = sum(WIDTHS)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(found: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(found.double(), want.double(), rtol=1e-5, atol=1e-5)


def vectors_of(kind: str) -> SiteVectors:
    return {
        "gain": SiteVectors(gain=draw(N, seed=1)),
        "addend": SiteVectors(addend=draw(N, seed=2)),
        "both": SiteVectors(gain=draw(N, seed=3), addend=draw(N, seed=4)),
        "one input gain": SiteVectors(in_gains=(None, draw(K, seed=5), None)),
        "all": SiteVectors(draw(N, seed=6), draw(N, seed=7), (draw(K, seed=8), None, draw(K, seed=9))),
    }[kind]


def reference(x: Tensor, weight: Tensor, bias: Tensor | None, delta: Tensor, vectors: SiteVectors | None) -> Tensor:
    """One row, float64."""
    x, weight, delta = x.double(), weight.double(), delta.double()
    product, column = [], 0
    for index, width in enumerate(WIDTHS):
        gain = vectors.in_gains[index] if vectors is not None and vectors.in_gains else None
        own = x if gain is None else x * gain.double()
        product.append(weight[column : column + width] @ own)
        column += width
    y = torch.cat(product) + delta
    if vectors is not None and vectors.gain is not None:
        y = y * vectors.gain.double()
    if bias is not None:
        y = y + bias.double()
    if vectors is not None and vectors.addend is not None:
        y = y + vectors.addend.double()
    return y


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("kind", ["gain", "addend", "both", "one input gain", "all"])
def test_a_linear_with_rows_of_every_kind(kind: str, biased: bool) -> None:
    x, weight, bias = draw(7, K, seed=10), draw(N, K, seed=11), draw(N, seed=12) * 30 if biased else None
    delta, before = draw(7, N, seed=13), x.clone()
    own = AdapterExtras({(0, Site.QKV): vectors_of(kind)})
    other = AdapterExtras({(0, Site.QKV): vectors_of("both"), (1, Site.QKV): vectors_of("gain")})
    adapted = Adapted([ExtraRows(1, 3, own), ExtraRows(5, 6, other)], {Site.QKV: WIDTHS})

    def add(y: Tensor) -> None:
        y += delta

    y = adapted.linear(PlainLinear(weight, bias), x, 0, Site.QKV, add)
    rows = [None, vectors_of(kind), vectors_of(kind), None, None, vectors_of("both"), None]
    for row, vectors in enumerate(rows):
        close(y[row], reference(x[row], weight, bias, delta[row], vectors))
    assert torch.equal(x, before), "the input belongs to others too"


def test_an_input_gain_where_the_site_has_one_slice() -> None:
    x, weight = draw(4, K, seed=20), draw(6, K, seed=21)
    seen: list[Tensor] = []
    extras = AdapterExtras({(0, Site.DOWN): SiteVectors(in_gains=(draw(K, seed=22),))})
    adapted = Adapted([ExtraRows(1, 2, extras)], {Site.DOWN: (6,)})
    before = x.clone()
    y = adapted.linear(PlainLinear(weight), x, 0, Site.DOWN, lambda y: seen.append(x.clone()))
    close(y[1], weight.double() @ (x[1].double() * draw(K, seed=22).double()))
    close(y[[0, 2, 3]], x[[0, 2, 3]].double() @ weight.double().T)
    assert torch.equal(seen[0], before), "LoRA reads the input as it is"


def test_a_site_that_no_row_changes_is_the_plain_call() -> None:
    weight, bias, x = draw(N, K, seed=30), draw(N, seed=31), draw(5, K, seed=32)
    extras = AdapterExtras({(3, Site.QKV): vectors_of("all")})
    plain = PlainLinear(weight, bias)
    y = Adapted([ExtraRows(0, 5, extras)], {Site.QKV: WIDTHS}).linear(plain, x, 0, Site.QKV, lambda y: None)
    assert torch.equal(y, plain(x))


def test_embedding_rows() -> None:
    vocabulary, more, hidden, rank = 20, 23, 8, 3
    base, replaced = draw(vocabulary, hidden, seed=40), draw(more, hidden, seed=41)
    a, b, gain, trained = draw(more, rank, seed=42), draw(rank, hidden, seed=43), draw(hidden, seed=44), draw(2, hidden)
    row_of = torch.full((more,), -1)
    row_of[torch.tensor([21, 4])] = torch.arange(2)
    own = AdapterExtras(embedding=EmbeddingExtras(replaced, a, b, gain, row_of, trained), vocabulary=more)
    tokens_only = AdapterExtras(embedding=EmbeddingExtras(row_of=row_of[:vocabulary], rows=trained))
    ids = torch.tensor([4, 22, 21, 4, 7, 4, 9])
    found = Adapted([ExtraRows(1, 4, own), ExtraRows(4, 6, tokens_only)]).embed(ids, base)
    want = [base[4], None, trained[0], trained[1], base[7], trained[1], base[9]]
    want[1] = gain * (replaced[22] + a[22] @ b)
    for row, expected in zip(found, want, strict=True):
        assert expected is not None
        close(row, expected)


@pytest.mark.parametrize("replaced", [True, False])
def test_head_rows(replaced: bool) -> None:
    hidden, rank = 8, 3
    vocabulary = 23 if replaced else 20
    base, weight = draw(20, hidden, seed=50), draw(23, hidden, seed=51) if replaced else None
    extras = HeadExtras(
        weight=weight,
        a=draw(rank, hidden, seed=52),
        b=draw(rank, vocabulary, seed=53),
        gain=draw(vocabulary, seed=54),
        addend=draw(vocabulary, seed=55),
        in_gain=draw(hidden, seed=56),
        token_ids=torch.tensor([19, 2]),
        rows=draw(2, hidden, seed=57),
    )
    x = draw(4, hidden, seed=58)
    found = adapted_logits(x, extras, PlainLinear(base))
    own = (base if weight is None else weight).double()
    own = own.index_copy(0, torch.tensor([19, 2]), draw(2, hidden, seed=57).double())
    assert extras.a is not None and extras.b is not None  # noqa: PT018  for the type checker
    assert extras.gain is not None and extras.addend is not None and extras.in_gain is not None  # noqa: PT018  likewise
    for row, got in zip(x.double(), found, strict=True):
        want = own @ (row * extras.in_gain) + extras.b.double().T @ (extras.a.double() @ row)
        want = want * extras.gain + extras.addend
        close(got, want)


def test_neighbours_of_one_adapter_are_one_part() -> None:
    one, two = AdapterExtras(), AdapterExtras()
    parts = extra_rows([2, 1, 3, 1, 1, 4], [None, one, one, two, None, two])
    assert [(p.begin, p.end) for p in parts] == [(2, 6), (6, 7), (8, 12)]
    assert [p.extras is two for p in parts] == [False, True, True]


def test_gains_are_magnitude_over_the_norm_of_the_whole_weight() -> None:
    weight, a, b, magnitude = draw(9, K, seed=60), draw(3, K, seed=61), draw(9, 3, seed=62), draw(9, seed=63)
    whole = weight.double() + 0.7 * b.double() @ a.double()
    close(dora_gain(magnitude, weight, a, b, 0.7), magnitude.double() / whole.norm(dim=1))
    ids, of, m = draw(3, 9, seed=64), draw(K, 3, seed=65), draw(K, seed=66)
    table = weight.double() + 0.7 * (of.double() @ ids.double()).T
    close(dora_embedding_gain(m, weight, ids, of, 0.7), m.double() / table.norm(dim=0))
