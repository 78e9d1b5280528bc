"""Kinds of adapter on SmolLM2: PEFT makes them, and its float32 logits are met, alone and all in one batch.

SmolLM2 ties embedding and head, so kinds on either show what the tie does to them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.kinds import LAYER_KINDS, TOKENS, VOCABULARY_KINDS
from tests.support.mixing import Bench, Script
from tests.support.zoo import Truth, load_base, make

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

WITHIN = 1e-3
KINDS = {
    name: {**LAYER_KINDS, **VOCABULARY_KINDS}[name]
    for name in (
        "r3",
        "patterns, rslora",
        "exclude regex",
        "dora, rslora, patterns",
        "lora_bias",
        "norms",
        "ia3 everywhere",
        "ia3, bfloat16",
        "shards",
        "tokens, lora head",
        "tied: dora both",
        "head, embedding and norms",
    )
}
SOME = ("patterns, rslora", "lora_bias", "norms", "ia3, bfloat16", "tied: dora both")
SIZE = 0.6
"""Of what is random: a model of thirty layers drifts far with every one of them pushed as far as in a tiny one."""
IDS = (*range(504, 509), *TOKENS, 28, 1, 260, 5, 282)
PREFILL = (6, 4)


def differs(script: Script, want: torch.Tensor) -> float:
    assert script.fault is None
    first = script.first_logits
    return float((torch.stack(script.logits) - want[first:]).abs().max())


@pytest.mark.parametrize("names", [SOME, pytest.param((*KINDS,), marks=pytest.mark.soak)], ids=["some", "a dozen"])
def test_kinds(base_dir: Path, tmp_path: Path, names: tuple[str, ...]) -> None:
    base = load_base(base_dir)
    truth = Truth(base)
    bench = Bench(base_dir, budget_bytes=900 << 20, threads=2)
    plain = truth.logits(None, IDS)
    wants, loaded, wrong = {}, {}, dict[str, float]()
    for number, name in enumerate(names):
        folder = tmp_path / str(number)
        make(base, folder, KINDS[name], seed=number, size=SIZE)
        wants[name] = truth.logits(folder, IDS)
        assert float((wants[name] - plain).abs().max()) > 0.5, f"{name} is too near to the base to show anything"
        loaded[name] = bench.load(folder)
        alone = Script(loaded[name], IDS, PREFILL, scores=False)
        bench.run(alone)
        wrong[f"{name}, alone"] = differs(alone, wants[name])
    together = {name: Script(one, IDS, PREFILL, at=i % 5, scores=False) for i, (name, one) in enumerate(loaded.items())}
    own = Script(None, IDS, PREFILL, at=1, scores=False)
    bench.run(*together.values(), own)
    wrong |= {name: differs(script, wants[name]) for name, script in together.items()} | {"base": differs(own, plain)}
    assert {name: difference for name, difference in wrong.items() if not difference < WITHIN} == {}
