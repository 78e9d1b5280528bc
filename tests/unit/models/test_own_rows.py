"""Norms and heads of adapters in one batch: each row has its own adapter's, and a row of none the base's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from lorry.layers.adapted import ExtraRows
from lorry.layers.extras import AdapterExtras, HeadExtras
from lorry.layers.spec import FINAL_NORM
from lorry.models.decoder import Decoder
from lorry.models.weights import load_tensors, read_spec
from tests.support.tiny_base import write_tiny_model

ROWS = 5
Q_NORM, K_NORM = (f"model.layers.0.self_attn.{name}.weight" for name in ("q_norm", "k_norm"))


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder = tmp_path_factory.mktemp("own-rows")
    write_tiny_model(folder, "qwen3", num_hidden_layers=1)
    spec = read_spec(folder)
    return Decoder(spec, load_tensors(folder, spec, torch.float32))


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def parts(one: AdapterExtras, other: AdapterExtras) -> list[ExtraRows]:
    """Rows 1 and 2 are of one, row 4 is of the other; 0 and 3 are of none."""
    return [ExtraRows(1, 3, one), ExtraRows(4, 5, other)]


def test_final_norms_are_of_their_rows(decoder: Decoder) -> None:
    hidden = draw(ROWS, decoder.spec.hidden)
    own = [draw(decoder.spec.hidden, seed=seed) for seed in (1, 2)]
    logits = decoder.head(hidden, parts(*(AdapterExtras(norms={FINAL_NORM: weight}) for weight in own)))
    for row, weight in enumerate((decoder._norm, own[0], own[0], decoder._norm, own[1])):
        x = F.rms_norm(hidden[row : row + 1], (decoder.spec.hidden,), weight, decoder.spec.rms_norm_eps)
        torch.testing.assert_close(logits[row], decoder._head(x)[0])


def test_heads_are_of_their_rows(decoder: Decoder) -> None:
    spec = decoder.spec
    hidden = draw(ROWS, spec.hidden)
    heads = [HeadExtras(weight=draw(spec.vocabulary, spec.hidden, seed=seed)) for seed in (1, 2)]
    logits = decoder.head(hidden, parts(*(AdapterExtras(head=head) for head in heads)))
    x = F.rms_norm(hidden, (spec.hidden,), decoder._norm, spec.rms_norm_eps)
    base = decoder._head(x)
    for row, head in enumerate((None, heads[0], heads[0], None, heads[1])):
        want = base[row] if head is None or head.weight is None else head.weight @ x[row]
        torch.testing.assert_close(logits[row], want)


def test_norms_of_heads_are_of_their_rows(decoder: Decoder) -> None:
    spec = decoder.spec
    own = [(draw(spec.head_dim, seed=seed), draw(spec.head_dim, seed=seed + 1)) for seed in (1, 3)]
    extras = [AdapterExtras(norms={Q_NORM: q, K_NORM: k}) for q, k in own]
    qk = draw(ROWS, spec.heads + spec.kv_heads, spec.head_dim)
    layer = decoder._layers[0]
    found = decoder._norm_heads(qk, layer, decoder.adapted(parts(*extras)))
    normed = F.rms_norm(qk, (spec.head_dim,), None, spec.rms_norm_eps)
    assert layer.head_norm is not None
    for row, weights in enumerate((None, own[0], own[0], None, own[1])):
        want = normed[row] * layer.head_norm
        if weights is not None:
            counts = torch.tensor([spec.heads, spec.kv_heads])
            want = normed[row] * torch.stack(weights).repeat_interleave(counts, 0)
        torch.testing.assert_close(found[row], want)
