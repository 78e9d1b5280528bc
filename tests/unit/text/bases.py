"""Small tokenizers of both served families, trained here, written as Hugging Face folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = [
    "the lorry carries many adapters to many tenants and one base",
    "naïve café, Größe, 東京 と 京都, привет мир 🚚🚛 👩‍👩‍👧‍👦",
    "def load(path): return path  # two  spaces\n\tand a tab",
] * 4
SPECIALS = ["<|end|>", "<s>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_level() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens(["plain_added", "mit Größe"])
    return tokenizer


def sentencepiece(strip: bool = True) -> tokenizers.Tokenizer:
    pieces = sorted({char for line in CORPUS[:1] for char in line if char != " "})
    words = ["▁", "▁the", "▁lorry", "▁many", "▁▁", "er", "s▁"]
    names = [*SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, *words]
    tokenizer = tokenizers.Tokenizer(
        models.BPE({name: index for index, name in enumerate(names)}, [], byte_fallback=True, unk_token="<s>")
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strip else steps)
    tokenizer.add_special_tokens(SPECIALS)
    return tokenizer


def write_base(folder: Path, backend: tokenizers.Tokenizer, config: dict[str, Any] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    if config is None:
        config = {"bos_token": "<s>", "eos_token": {"content": "<|im_end|>"}, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
