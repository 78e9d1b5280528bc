"""What a batch must keep apart: the LoRA of a row from the narrowed input of its base linear, and an adapter that
overflows from all that run beside it and after it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lorry.errors import NonFiniteLogits
from lorry.layers.linear import LinearMethod
from tests.oracle.changes import KINDS, changed
from tests.oracle.worlds import IDS, MOVED, WITHIN, World
from tests.support.kinds import LINEARS
from tests.support.mixing import Bench
from tests.support.zoo import logits_of

FIND = Callable[[str], World]


# 10. A linear that sees its input narrowed.

BOUND = 0.5


class Clipping:
    """A linear that clips its input, as a quantised one clips and rounds it; clipping is continuous, so that the two
    implementations that are compared cannot fall on two sides of a step."""

    def __init__(self, inner: LinearMethod) -> None:
        self._inner = inner

    @property
    def bias(self) -> Tensor | None:
        return self._inner.bias

    def product(self, x: Tensor) -> Tensor:
        return self._inner.product(x.clamp(-BOUND, BOUND))

    def __call__(self, x: Tensor) -> Tensor:
        return self._inner(x.clamp(-BOUND, BOUND))


def clip_base_linears(model: nn.Module) -> None:
    """The same in PEFT's model: the base's linears of the layers alone."""

    def clip(module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (given[0].clamp(-BOUND, BOUND), *given[1:])

    for name, module in model.named_modules():
        part = name.removesuffix(".base_layer")
        if isinstance(module, nn.Linear) and ".layers." in name and part.endswith(tuple(LINEARS)):
            module.register_forward_pre_hook(clip)


CLIPPED = ("r8", "rslora", "dora", "dora, bias all", "lora_bias", "ia3 everywhere", "ia3, inputs of attention")


def test_lora_reads_what_the_base_linear_does_not(world_of: FIND) -> None:
    world = world_of("qwen2")
    bench = Bench(world.folder / "base")
    decoder = bench.parts.runner._decoder
    decoder._layers = [
        replace(layer, linears={site: Clipping(method) for site, method in layer.linears.items()})
        for layer in decoder._layers
    ]
    found = {name: world.made(name, KINDS[name]) for name in CLIPPED}
    loaded = {name: bench.load(made.folder) for name, made in found.items()}
    scripts = {name: world.script(found[name], loaded[name], at=i) for i, name in enumerate(CLIPPED)}
    base = world.script(None, None, at=2)
    bench.run(base, *scripts.values())

    def truth(folder: Path | None) -> Tensor:
        model = world.truth.model(folder)
        clip_base_linears(model)
        return logits_of(model, IDS)

    assert world.differs(base, truth(None)) < WITHIN
    for name, made in found.items():
        want = truth(made.folder)
        assert float((want - made.logits).abs().max()) > MOVED, "clipping must matter"
        assert world.differs(scripts[name], want) < WITHIN, name


# 11. One that is bad among good ones.

LOUD: Mapping[str, Mapping[str, float]] = {
    "r8": {"gate_proj.lora_B.weight": 1e25, "up_proj.lora_B.weight": 1e25},
    "lora_bias": {"gate_proj.lora_B.bias": 1e25, "up_proj.lora_B.bias": 1e25},
    "dora": {"gate_proj.lora_magnitude_vector": 1e25, "up_proj.lora_magnitude_vector": 1e25},
    "norms": {"model.norm.weight": 3e38},
    "head, embedding and norms": {"model.norm.weight": 1e20, "lm_head.weight": 1e20},
    "ia3, no feedforward": {"gate_proj.ia3_l": 1e25, "up_proj.ia3_l": 1e25},
    "bias all": {"v_proj.bias": 3e38},
}
GOOD = ("r8", "dora both", "ia3 everywhere", "tokens", "head and embedding", "lora_bias")


@pytest.mark.parametrize("name", LOUD)
def test_an_adapter_that_overflows_ends_alone(world_of: FIND, tmp_path: Path, name: str) -> None:
    """Finite in its file, not in its products: its sequences end, and those of the same step, and those that get its
    pages and its slot afterwards, have PEFT's logits."""

    def louden(tensors: dict[str, Tensor]) -> None:
        for ending, value in LOUD[name].items():
            loud = [key for key in tensors if key.endswith(ending)]
            assert loud
            for key in loud:
                tensors[key] = torch.full_like(tensors[key], value)

    world = world_of("qwen2")
    folder = changed(world, name, tmp_path / "loud", louden)
    want = world.truth.logits(folder, IDS)
    assert not bool(torch.isfinite(want).all()), "this one must overflow"
    good = {one: world.made(one, KINDS[one]) for one in GOOD}
    for _ in range(2):
        bad = world.bench.load(folder)
        loaded = {one: world.bench.load(made.folder) for one, made in good.items()}
        scripts = {one: world.script(good[one], loaded[one], at=2 * i) for i, one in enumerate(GOOD)}
        loud = [world.script(None, bad, at=at) for at in (0, 3)]
        base = world.script(None, None, at=1)
        world.bench.run(loud[0], *scripts.values(), loud[1], base)
        world.bench.unload(bad, *loaded.values())
        assert [script.fault for script in loud] == [NonFiniteLogits.reason] * 2
        assert world.differs(base, world.base_logits()) < WITHIN
        for one, script in scripts.items():
            assert world.differs(script, good[one].logits) < WITHIN, one
