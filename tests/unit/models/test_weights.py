"""A base's tensors by family: one file or shards, tied or not, in any of three types; or refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from lorry.errors import UnsupportedBase
from lorry.models.weights import DTYPES, load_tensors, read_spec
from tests.support.tiny_base import write_tiny_model

BIASED = {"attention_bias": True, "mlp_bias": True}
OPTIONAL: dict[str, tuple[dict[str, Any], set[str]]] = {
    "llama": ({}, set()),
    "mistral": ({}, set()),
    "qwen2": ({}, {"self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"}),
    "qwen3": ({}, {"self_attn.q_norm.weight", "self_attn.k_norm.weight"}),
}


@pytest.mark.parametrize("family", OPTIONAL)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_tensor_of_every_family_is_read(tmp_path: Path, family: str, tied: bool, dtype: str) -> None:
    model = write_tiny_model(
        tmp_path, family, dtype=DTYPES[dtype], shard_size="60KB", tie_word_embeddings=tied, num_hidden_layers=2
    )
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    spec = read_spec(tmp_path)
    assert spec.tied_head is tied
    got = load_tensors(tmp_path, spec, torch.float32)
    want = dict(model.state_dict())
    assert got.keys() == want.keys()
    assert all(torch.equal(got[name], want[name]) for name in want)
    assert (got["lm_head.weight"] is got["model.embed_tokens.weight"]) is tied
    extra = {name.removeprefix("model.layers.1.") for name in got if ".layers.1." in name}
    assert {name for name in extra if name.endswith(".bias") or "_norm." in name} == OPTIONAL[family][1]


@pytest.mark.parametrize("file_dtype", DTYPES)
@pytest.mark.parametrize("engine_dtype", DTYPES)
def test_files_are_cast_to_the_engine_s_type(tmp_path: Path, file_dtype: str, engine_dtype: str) -> None:
    model = write_tiny_model(tmp_path, "qwen2", dtype=DTYPES[file_dtype])
    tensors = load_tensors(tmp_path, read_spec(tmp_path), DTYPES[engine_dtype])
    for name, want in model.state_dict().items():
        assert tensors[name].dtype == DTYPES[engine_dtype]
        assert torch.equal(tensors[name], want.to(DTYPES[engine_dtype]))


@pytest.mark.parametrize(
    ("family", "changes", "name"),
    [
        ("llama", BIASED, "model.layers.1.self_attn.o_proj.bias"),
        ("llama", BIASED, "model.layers.0.mlp.gate_proj.bias"),
        ("mistral", {}, "model.layers.1.self_attn.k_proj.weight"),
        ("qwen2", {}, "model.layers.0.self_attn.v_proj.bias"),
        ("qwen3", {}, "model.layers.1.self_attn.k_norm.weight"),
        ("qwen3", {"tie_word_embeddings": False}, "lm_head.weight"),
        ("qwen3", {}, "model.embed_tokens.weight"),
    ],
)
def test_a_missing_tensor_or_a_wrong_shape_is_refused_by_name(
    tmp_path: Path, family: str, changes: dict[str, Any], name: str
) -> None:
    write_tiny_model(tmp_path, family, **changes)
    spec, path = read_spec(tmp_path), tmp_path / "model.safetensors"
    tensors = load_file(path)
    short = {**tensors, name: tensors[name][:-1].clone()}
    save_file(short, path)
    with pytest.raises(UnsupportedBase, match=f"{name}: shape"):
        load_tensors(tmp_path, spec, torch.float32)
    del short[name]
    save_file(short, path)
    with pytest.raises(UnsupportedBase, match=f"{name}: missing"):
        load_tensors(tmp_path, spec, torch.float32)


@pytest.mark.parametrize(
    ("family", "name", "shape"),
    [
        ("llama", "model.layers.0.self_attn.q_proj.bias", (64,)),
        ("qwen2", "model.layers.0.self_attn.o_proj.bias", (64,)),
        ("qwen2", "model.layers.0.self_attn.q_norm.weight", (16,)),
        ("qwen3", "model.layers.0.self_attn.q_proj.bias", (64,)),
        ("mistral", "model.layers.2.mlp.up_proj.weight", (96, 64)),
    ],
)
def test_a_tensor_that_the_config_does_not_ask_for_is_refused_by_name(
    tmp_path: Path, family: str, name: str, shape: tuple[int, ...]
) -> None:
    write_tiny_model(tmp_path, family)
    path = tmp_path / "model.safetensors"
    save_file({**load_file(path), name: torch.zeros(shape)}, path)
    with pytest.raises(UnsupportedBase, match=rf"{name}: .*no such tensor"):
        load_tensors(tmp_path, read_spec(tmp_path), torch.float32)


def test_a_tied_head_may_be_in_the_file_if_it_is_the_embedding(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, "qwen3")
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    embedding = tensors["model.embed_tokens.weight"]
    save_file({**tensors, "lm_head.weight": embedding.clone()}, path)
    found = load_tensors(tmp_path, read_spec(tmp_path), torch.bfloat16)
    assert found["lm_head.weight"] is found["model.embed_tokens.weight"]
    save_file({**tensors, "lm_head.weight": embedding + 0.5}, path)
    with pytest.raises(UnsupportedBase, match=r"lm_head\.weight: differs .*tie_word_embeddings"):
        load_tensors(tmp_path, read_spec(tmp_path), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float8_e4m3fn, torch.int8])
def test_other_types_in_the_file_are_refused_by_name(tmp_path: Path, dtype: torch.dtype) -> None:
    write_tiny_model(tmp_path, "llama")
    path = tmp_path / "model.safetensors"
    name = "model.layers.0.mlp.down_proj.weight"
    tensors = load_file(path)
    save_file({**tensors, name: tensors[name].to(dtype)}, path)
    with pytest.raises(UnsupportedBase, match=f"{name}: holds {dtype}"):
        load_tensors(tmp_path, read_spec(tmp_path), torch.float32)


def test_values_that_float16_cannot_hold_are_refused_by_name(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, "qwen2")
    path = tmp_path / "model.safetensors"
    name = "model.layers.0.self_attn.k_proj.bias"
    tensors = load_file(path)
    tensors[name][3] = 70000.0
    save_file(tensors, path)
    with pytest.raises(UnsupportedBase, match=f"{name}: .*float16"):
        load_tensors(tmp_path, read_spec(tmp_path), torch.float16)
    assert load_tensors(tmp_path, read_spec(tmp_path), torch.bfloat16)[name][3] > 65504


def test_a_tensor_in_two_shards_is_refused_by_name(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, "mistral", shard_size="60KB")
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    name = next(iter(load_file(shards[0])))
    save_file({**load_file(shards[1]), name: load_file(shards[0])[name]}, shards[1])
    with pytest.raises(UnsupportedBase, match=f"{name}: in two shards"):
        load_tensors(tmp_path, read_spec(tmp_path), torch.float32)


def test_the_index_decides_which_files_are_read(tmp_path: Path) -> None:
    write_tiny_model(tmp_path, "mistral", shard_size="60KB")
    save_file({"stray.weight": torch.zeros(1)}, tmp_path / "model-99999-of-00004.safetensors")
    load_tensors(tmp_path, read_spec(tmp_path), torch.float32)
    index = tmp_path / "model.safetensors.index.json"
    said = json.loads(index.read_text())
    said["weight_map"]["stray.weight"] = "model-99999-of-00004.safetensors"
    index.write_text(json.dumps(said))
    with pytest.raises(UnsupportedBase, match=r"stray\.weight"):
        load_tensors(tmp_path, read_spec(tmp_path), torch.float32)


@pytest.mark.parametrize("text", ["[]", "null", '"llama"', "{", ""])
def test_a_config_that_is_no_object_is_refused_by_its_path(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UnsupportedBase, match=r"config\.json"):
        read_spec(tmp_path)
