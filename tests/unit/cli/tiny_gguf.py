"""A small Llama with random weights, written as llama.cpp writes one: permuted q and k, its own names, Q4_1."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType
from gguf.quants import dequantize, quantize
from tokenizers import pre_tokenizers

LAYERS, HIDDEN, INTERMEDIATE, HEADS, KV_HEADS = 2, 64, 96, 4, 2
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["1 2", "h e", "l l"]
TOKENS = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"

Array = np.ndarray[Any, np.dtype[np.float32]]


def permuted(weight: Array, heads: int) -> Array:
    """What llama.cpp's converter does to q and k."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_tiny_gguf(path: Path, *, tied: bool = True, changed: Mapping[str, str] | None = None) -> dict[str, Array]:
    """Write ``path``; return the expected float32 tensors by Hugging Face name. ``changed`` replaces string fields."""
    random = np.random.default_rng(11)
    strings = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", **(changed or {})}
    writer = GGUFWriter(path, strings.pop("general.architecture", "llama"))
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    for name, value in strings.items():
        writer.add_string(name, value)
    writer.add_token_list(TOKENS)
    writer.add_token_types([TokenType.CONTROL if t in SPECIAL else TokenType.NORMAL for t in TOKENS])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    expected: dict[str, Array] = {}

    def matrix(gguf_name: str, name: str, rows: int, columns: int, heads: int = 0) -> None:
        values = random.normal(0, 0.05, (rows, columns)).astype(np.float32)
        kind = GGMLQuantizationType.Q4_1
        # Rows stay whole under the permutation and a block lies within a row, so quantising commutes with it.
        expected[name] = dequantize(quantize(values, kind), kind)
        packed = quantize(permuted(values, heads) if heads else values, kind)
        writer.add_tensor(gguf_name, packed, raw_dtype=kind)

    def norm(gguf_name: str, name: str) -> None:
        expected[name] = random.normal(1, 0.1, HIDDEN).astype(np.float32)
        writer.add_tensor(gguf_name, expected[name])

    matrix("token_embd.weight", "model.embed_tokens.weight", len(TOKENS), HIDDEN)
    kv = HIDDEN // HEADS * KV_HEADS
    for layer in range(LAYERS):
        blk, hf = f"blk.{layer}", f"model.layers.{layer}"
        norm(f"{blk}.attn_norm.weight", f"{hf}.input_layernorm.weight")
        matrix(f"{blk}.attn_q.weight", f"{hf}.self_attn.q_proj.weight", HIDDEN, HIDDEN, HEADS)
        matrix(f"{blk}.attn_k.weight", f"{hf}.self_attn.k_proj.weight", kv, HIDDEN, KV_HEADS)
        matrix(f"{blk}.attn_v.weight", f"{hf}.self_attn.v_proj.weight", kv, HIDDEN)
        matrix(f"{blk}.attn_output.weight", f"{hf}.self_attn.o_proj.weight", HIDDEN, HIDDEN)
        norm(f"{blk}.ffn_norm.weight", f"{hf}.post_attention_layernorm.weight")
        matrix(f"{blk}.ffn_gate.weight", f"{hf}.mlp.gate_proj.weight", INTERMEDIATE, HIDDEN)
        matrix(f"{blk}.ffn_up.weight", f"{hf}.mlp.up_proj.weight", INTERMEDIATE, HIDDEN)
        matrix(f"{blk}.ffn_down.weight", f"{hf}.mlp.down_proj.weight", HIDDEN, INTERMEDIATE)
    norm("output_norm.weight", "model.norm.weight")
    if not tied:
        matrix("output.weight", "lm_head.weight", len(TOKENS), HIDDEN)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return expected
