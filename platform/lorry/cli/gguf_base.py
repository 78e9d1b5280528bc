"""A Hugging Face base directory out of a Llama GGUF file: dequantised weights, config, tokenizer, chat template.

torch, numpy, gguf, safetensors and tokenizers are imported when a conversion runs, never when the CLI starts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lorry.errors import UnsupportedBase

if TYPE_CHECKING:
    import numpy as np

Advance = Callable[[int, int], None]
"""(tensors done, tensors in all)."""

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_BLOCK = re.compile(r"^blk\.(\d+)\.([a-z_]+)\.weight$")
_CONTROL_TOKEN = 3
_DIGIT_SPLITTING = frozenset({"smollm"})


def tensor_name(gguf_name: str) -> str:
    """The Hugging Face name of a GGUF tensor. Raises UnsupportedBase for one that a Llama does not have."""
    if gguf_name in _TOP:
        return _TOP[gguf_name]
    match = _BLOCK.match(gguf_name)
    if match is None or match[2] not in _LAYER:
        raise UnsupportedBase(f"GGUF tensor {gguf_name!r} has no place in a Llama decoder; use a plain Llama file")
    return f"model.layers.{match[1]}.{_LAYER[match[2]]}.weight"


def undo_rotary_permutation(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """llama.cpp stores the rows of q and k with the two rotary halves of a head interleaved; [heads * D, K] back to
    Hugging Face's order, where a head's first half comes before its second."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(weight.shape)


def llama_config(fields: Mapping[str, Any], tied_head: bool) -> dict[str, Any]:
    """A minimal ``config.json`` from GGUF metadata: only fields that the arithmetic or stopping needs."""
    if fields["general.architecture"] != "llama":
        raise UnsupportedBase(
            f"general.architecture: {fields['general.architecture']!r} is not supported; use a GGUF file of 'llama'"
        )
    hidden = int(fields["llama.embedding_length"])
    heads = int(fields["llama.attention.head_count"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": int(fields["llama.feed_forward_length"]),
        "num_hidden_layers": int(fields["llama.block_count"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(fields["llama.attention.head_count_kv"]),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": float(fields["llama.rope.freq_base"]),
        "max_position_embeddings": int(fields["llama.context_length"]),
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "tie_word_embeddings": tied_head,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": int(fields["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(fields["tokenizer.ggml.eos_token_id"]),
        "pad_token_id": int(fields["tokenizer.ggml.padding_token_id"]),
        "torch_dtype": "bfloat16",
    }


def write_tokenizer(fields: Mapping[str, Any], directory: Path) -> None:
    """tokenizer.json, tokenizer_config.json and chat_template.jinja.

    ``tokenizer.ggml.pre`` decides whether digits are split one by one; transformers' own conversion loses that.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    if fields["tokenizer.ggml.model"] != "gpt2" or fields["tokenizer.ggml.pre"] not in _DIGIT_SPLITTING:
        found = (fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"])
        raise UnsupportedBase(f"tokenizer.ggml.model and pre: {found!r} are not supported; use ('gpt2', 'smollm')")
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds: list[int] = fields["tokenizer.ggml.token_type"]
    tokenizer.add_special_tokens(
        [
            AddedToken(token, special=True, normalized=False)
            for token, kind in zip(tokens, kinds, strict=True)
            if kind == _CONTROL_TOKEN
        ]
    )
    tokenizer.save(str(directory / "tokenizer.json"))
    special = {name: tokens[int(fields[f"tokenizer.ggml.{key}_token_id"])] for name, key in _SPECIAL.items()}
    write_json(
        directory / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": int(fields["llama.context_length"]),
            "clean_up_tokenization_spaces": False,
            **special,
        },
    )
    (directory / "chat_template.jinja").write_text(fields["tokenizer.chat_template"], encoding="utf-8")


_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def convert_gguf(gguf_file: Path, directory: Path, advance: Advance = lambda done, total: None) -> None:
    """Fill an existing empty ``directory`` with a base in bfloat16. Raises UnsupportedBase for what is not a Llama."""
    import torch
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors.torch import save_file

    reader = GGUFReader(str(gguf_file))
    fields = {name: field.contents() for name, field in reader.fields.items()}
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    config = llama_config(fields, tied)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights: dict[str, torch.Tensor] = {}
    for done, tensor in enumerate(reader.tensors, start=1):
        values = dequantize(tensor.data, tensor.tensor_type)
        match = _BLOCK.match(tensor.name)
        if match is not None and match[2] in heads:
            values = undo_rotary_permutation(values, heads[match[2]])
        weights[tensor_name(tensor.name)] = torch.tensor(values).to(torch.bfloat16)
        advance(done, len(reader.tensors))
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "model.safetensors").chmod(0o644)  # safetensors writes 0600; the rest follows the umask
    write_json(directory / "config.json", config)
    stops = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(directory / "generation_config.json", stops)
    write_tokenizer(fields, directory)


__all__ = ["convert_gguf", "llama_config", "tensor_name", "undo_rotary_permutation", "write_json", "write_tokenizer"]
