import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from lorry.cli.gguf_base import convert_gguf, tensor_name, undo_rotary_permutation
from lorry.errors import UnsupportedBase
from lorry.layers.spec import DecoderSpec
from tests.unit.cli.tiny_gguf import HEADS, HIDDEN, KV_HEADS, LAYERS, TEMPLATE, TOKENS, permuted, write_tiny_gguf


def converted(tmp_path: Path, **options: Any) -> tuple[Path, dict[str, np.ndarray]]:
    gguf_file, out = tmp_path / "tiny.gguf", tmp_path / "base"
    expected = write_tiny_gguf(gguf_file, **options)
    out.mkdir()
    convert_gguf(gguf_file, out)
    return out, expected


@pytest.mark.parametrize("heads", [1, 3, 9])
def test_permutation_is_undone(heads: int) -> None:
    weight = np.arange(heads * 8 * 5, dtype=np.float32).reshape(heads * 8, 5)
    assert np.array_equal(undo_rotary_permutation(permuted(weight, heads), heads), weight)
    assert not np.array_equal(permuted(weight, heads), weight)


@pytest.mark.parametrize("tied", [True, False])
def test_every_tensor_is_the_dequantised_one_in_bfloat16(tmp_path: Path, tied: bool) -> None:
    out, expected = converted(tmp_path, tied=tied)
    written = load_file(out / "model.safetensors")
    assert set(written) == set(expected)
    for name, values in expected.items():
        assert torch.equal(written[name], torch.from_numpy(values).to(torch.bfloat16)), name


def test_config_is_accepted_by_the_runtime(tmp_path: Path) -> None:
    out, _ = converted(tmp_path)
    spec = DecoderSpec.from_config(json.loads((out / "config.json").read_text()))
    assert (spec.layers, spec.hidden, spec.heads, spec.kv_heads) == (LAYERS, HIDDEN, HEADS, KV_HEADS)
    assert (spec.vocabulary, spec.rms_norm_eps, spec.tied_head, spec.eos_token_ids) == (len(TOKENS), 1e-5, True, (2,))


def test_an_untied_head_is_said_in_the_config(tmp_path: Path) -> None:
    out, _ = converted(tmp_path, tied=False)
    assert json.loads((out / "config.json").read_text())["tie_word_embeddings"] is False


def test_tokenizer_splits_digits_although_a_merge_would_join_them(tmp_path: Path) -> None:
    out, _ = converted(tmp_path)
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    assert tokenizer.encode("12").tokens == ["1", "2"]
    assert tokenizer.encode("hell").tokens == ["he", "ll"]


@pytest.mark.parametrize("text", ["12 monkeys", "naïve 日本 🎉", "def f(x):\n\treturn x ** 2", "  a  b\n\n"])
def test_tokenizer_gives_the_text_back(tmp_path: Path, text: str) -> None:
    out, _ = converted(tmp_path)
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_control_tokens_are_single_and_left_out_of_text(tmp_path: Path) -> None:
    out, _ = converted(tmp_path)
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    encoding = tokenizer.encode("<|im_start|>hey<|im_end|>")
    assert (encoding.ids[0], encoding.ids[-1]) == (1, 2)
    assert tokenizer.decode(encoding.ids) == "hey"
    assert (out / "chat_template.jinja").read_text() == TEMPLATE
    assert json.loads((out / "tokenizer_config.json").read_text())["eos_token"] == "<|im_end|>"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("general.architecture", "gemma"),
        ("tokenizer.ggml.model", "llama"),
        ("tokenizer.ggml.pre", "qwen2"),
    ],
)
def test_another_kind_of_file_is_refused_by_the_field(tmp_path: Path, field: str, value: str) -> None:
    if field == "general.architecture":
        with pytest.raises((UnsupportedBase, KeyError), match=r"architecture"):
            converted(tmp_path, changed={field: value})
        return
    with pytest.raises(UnsupportedBase, match=value):
        converted(tmp_path, changed={field: value})


def test_a_tensor_that_no_llama_has_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedBase, match=r"blk\.0\.attn_q_norm\.weight"):
        tensor_name("blk.0.attn_q_norm.weight")
