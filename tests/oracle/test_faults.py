"""Kinds of fault that other engines had, each put to the whole path: names that begin alike, tensors that are applied
nowhere, scales, modules that a layer has not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor

from lorry.errors import AdapterLoadFailed
from tests.oracle.changes import KINDS, changed, reasons
from tests.oracle.worlds import IDS, MOVED, WITHIN, BaseKind, World
from tests.support.kinds import LINEARS
from tests.support.zoo import SINGLE, Kind

FIND = Callable[[str], World]


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
        world.bench.host.discard(held[-1].ref.key)
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
