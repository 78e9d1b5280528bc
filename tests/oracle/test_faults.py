"""Kinds of fault that other engines had, each put to the whole path: from PEFT's files to logits, or to a refusal."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from lorry.adapters.validate import validate_directory
from lorry.errors import AdapterLoadFailed, NonFiniteLogits
from lorry.layers.linear import LinearMethod
from tests.oracle.worlds import IDS, MOVED, WITHIN, BaseKind, World
from tests.support.kinds import LAYER_KINDS, LINEARS, VOCABULARY_KINDS
from tests.support.mixing import Bench
from tests.support.zoo import SINGLE, Kind, logits_of

FIND = Callable[[str], World]
KINDS: Mapping[str, Kind] = {**LAYER_KINDS, **VOCABULARY_KINDS}


def changed(world: World, name: str, folder: Path, change: Callable[[dict[str, Tensor]], None]) -> Path:
    """A copy of an adapter with other tensors."""
    made = world.made(name, KINDS[name])
    shutil.copytree(made.folder, folder)
    tensors = load_file(folder / SINGLE)
    change(tensors)
    save_file(tensors, folder / SINGLE, {"format": "pt"})
    return folder


def reasons(world: World, folder: Path) -> list[str]:
    """Why it is refused."""
    report = validate_directory(folder, world.bench.spec, base_dir=world.folder / "base")
    return [f"{check.id}: {check.message}" for check in report.failed]


# 4. Names that begin alike.


@pytest.fixture(scope="module")
def twelve_layers(tmp_path_factory: pytest.TempPathFactory) -> World:
    sizes = {"num_hidden_layers": 12, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    return World(tmp_path_factory.mktemp("twelve"), BaseKind("llama", True, sizes))


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(
            {"target_modules": ["layers.1.self_attn.q_proj", "layers.10.mlp.up_proj"], "lora_alpha": 40}, id="targets"
        ),
        pytest.param({"target_modules": LINEARS, "layers_to_transform": [1]}, id="layers_to_transform"),
        pytest.param({"target_modules": r".*layers\.1\..*_proj"}, id="regex"),
        pytest.param({"target_modules": LINEARS, "exclude_modules": ["layers.1.self_attn.q_proj"]}, id="exclude"),
        pytest.param(
            {
                "target_modules": ["q_proj", "down_proj"],
                "rank_pattern": {"layers.1.self_attn.q_proj": 2, "1.mlp.down_proj": 3},
                "alpha_pattern": {"layers.1.mlp.down_proj": 40, r".*layers\.1.*q_proj": 9},
            },
            id="patterns",
        ),
        pytest.param({"target_modules": ["q_proj"], "modules_to_save": ["1.input_layernorm"]}, id="modules_to_save"),
    ],
)
def test_layer_1_is_not_layer_11(twelve_layers: World, config: dict[str, Any]) -> None:
    world = twelve_layers
    made = world.made(json.dumps(config), Kind({"r": 4, "lora_alpha": 8, **config}))
    assert float((made.logits - world.base_logits()).abs().max()) > MOVED
    loaded = world.bench.load(made.folder)
    script = world.script(made, loaded)
    world.bench.run(script)
    world.bench.unload(loaded)
    assert world.differs(script, made.logits) < WITHIN


# 6. Tensors that are nowhere applied.

APPLIED = (
    "dora, bias all",
    "lora_bias",
    "ia3 everywhere",
    "dora both",
    "head, embedding and norms",
    "tokens of both",
    "tied: lora embedding",
    "larger vocabulary, tokens",
)


def _one_of_each(names: list[str]) -> list[str]:
    """One tensor for each ending, as `q_proj.lora_A.weight`."""
    return sorted({name.rpartition("model.")[2].split(".", 3)[-1]: name for name in names}.values())


@pytest.mark.parametrize("name", APPLIED)
def test_a_tensor_that_matches_nothing_refuses(world_of: FIND, tmp_path: Path, name: str) -> None:
    world = world_of("qwen2")
    names = sorted(load_file(world.made(name, KINDS[name]).folder / SINGLE))
    for number, victim in enumerate(_one_of_each(names)):
        renamed = victim.replace("base_model.model.", "base_model.model.other.")

        def rename(tensors: dict[str, Tensor], victim: str = victim, renamed: str = renamed) -> None:
            tensors[renamed] = tensors.pop(victim)

        def add(tensors: dict[str, Tensor], victim: str = victim, renamed: str = renamed) -> None:
            tensors[renamed] = tensors[victim].clone()

        for what, change in (("renamed", rename), ("added", add)):
            why = reasons(world, changed(world, name, tmp_path / f"{what}{number}", change))
            assert any(renamed in reason for reason in why), f"{what} {victim}: {why}"


@pytest.mark.parametrize("name", APPLIED)
def test_an_adapter_of_which_nothing_matches_is_not_the_base(world_of: FIND, tmp_path: Path, name: str) -> None:
    def rename(tensors: dict[str, Tensor]) -> None:
        for victim in list(tensors):
            tensors[victim.replace("base_model.model.", "base_model.model.model.")] = tensors.pop(victim)

    world = world_of("qwen2")
    folder = changed(world, name, tmp_path / "renamed", rename)
    assert reasons(world, folder)
    with pytest.raises(AdapterLoadFailed):
        world.bench.load(folder)


@pytest.mark.parametrize("name", APPLIED)
def test_a_tensor_of_another_shape_refuses(world_of: FIND, tmp_path: Path, name: str) -> None:
    world = world_of("qwen2")
    names = sorted(load_file(world.made(name, KINDS[name]).folder / SINGLE))
    for number, victim in enumerate(_one_of_each(names)):

        def cut(tensors: dict[str, Tensor], victim: str = victim) -> None:
            tensors[victim] = tensors[victim][:-1].clone()

        why = reasons(world, changed(world, name, tmp_path / str(number), cut))
        assert any(victim in reason for reason in why), f"{victim}: {why}"


@pytest.mark.parametrize(
    ("name", "copy"),
    [
        ("lora both", "lm_head.base_layer.weight"),
        ("lora embedding", "embed_tokens.base_layer.weight"),
        ("ia3 head", "lm_head.base_layer.weight"),
        ("tied: lora embedding", "lm_head.lora_B.weight"),
        ("tied: embedding", "lm_head.weight"),
    ],
)
def test_a_saved_copy_that_is_none_refuses(world_of: FIND, tmp_path: Path, name: str, copy: str) -> None:
    """PEFT reads such tensors over the base's, or over each other, so that one value in them decides an answer."""
    victim = f"base_model.model.{'model.' if copy.startswith('embed') else ''}{copy}"

    def nudge(tensors: dict[str, Tensor]) -> None:
        tensors[victim][3, 2] += 0.1

    why = reasons(world_of("qwen2"), changed(world_of("qwen2"), name, tmp_path / "nudged", nudge))
    assert any(victim in reason for reason in why), why


# 7. Scales.


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("r", 0),
        ("r", -4),
        ("r", True),
        ("r", 4.0),
        ("rank_pattern", {"q_proj": 0}),
        ("rank_pattern", {"q_proj": -1}),
        ("lora_alpha", float("nan")),
        ("lora_alpha", float("inf")),
        ("lora_alpha", "8"),
        ("alpha_pattern", {"q_proj": float("-inf")}),
        ("use_rslora", "true"),
        ("use_rslora", 1),
    ],
)
def test_a_scale_that_is_none_refuses(world_of: FIND, tmp_path: Path, field: str, value: object) -> None:
    world = world_of("llama")
    shutil.copytree(world.made("r8", KINDS["r8"]).folder, tmp_path / "edited")
    path = tmp_path / "edited" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    why = reasons(world, tmp_path / "edited")
    said = "is not JSON" if "inf" in repr(value) or "nan" in repr(value) else field
    assert any(said in reason for reason in why), why


@pytest.mark.parametrize("name", ["patterns, rslora", "dora, rslora, patterns", "lora_bias, rslora, patterns"])
def test_loading_again_and_again_changes_no_scale(world_of: FIND, name: str) -> None:
    """In another slot each time, beside the slots that have it still, and from an image built anew."""
    world = world_of("llama")
    made = world.made(name, KINDS[name])
    held = []
    for _ in range(3):
        held.append(world.bench.load(made.folder))
        script = world.script(made, held[-1])
        world.bench.run(script)
        assert world.differs(script, made.logits) < WITHIN
        world.bench.host.discard(held[-1].ref.digest)
    world.bench.unload(*held)


# 8. A module that one layer has not.


@pytest.mark.parametrize("name", ["r8", "dora", "lora_bias", "ia3 everywhere", "dora, bias all"])
@pytest.mark.parametrize("module", ["layers.0.self_attn.v_proj", "layers.1.self_attn.o_proj"])
def test_one_module_missing_in_one_layer_is_missing_there_alone(
    world_of: FIND, tmp_path: Path, name: str, module: str
) -> None:
    def drop(tensors: dict[str, Tensor]) -> None:
        gone = [tensors.pop(key) for key in list(tensors) if f"model.{module}." in key]
        assert gone

    world = world_of("qwen2")
    whole = world.made(name, KINDS[name])
    folder = changed(world, name, tmp_path / "thinned", drop)
    want = world.truth.logits(folder, IDS)
    assert float((want - whole.logits).abs().max()) > MOVED
    loaded = world.bench.load(folder)
    script = world.script(replace(whole, folder=folder, logits=want), loaded)
    world.bench.run(script)
    world.bench.unload(loaded)
    assert world.differs(script, want) < WITHIN


@pytest.mark.parametrize("part", ["lora_A.weight", "lora_B.weight"])
def test_half_a_pair_refuses(world_of: FIND, tmp_path: Path, part: str) -> None:
    world = world_of("qwen2")
    victim = f"model.layers.1.mlp.up_proj.{part}"

    def drop(tensors: dict[str, Tensor]) -> None:
        tensors.pop(f"base_model.model.{victim}")

    why = reasons(world, changed(world, "r8", tmp_path / "half", drop))
    assert any("model.layers.1.mlp.up_proj" in reason for reason in why), why


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
