"""Tokenizers, templates and end ids that are broken, bombs, or too large for the base."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from tests.support.tiny_tokenizer import write_tokenizer
from tests.unit.adapters.hostile.kinds import Kind, Spoil, sparse, text

_ROW = r"(text|tokenizer|files)(\..+)?"


@cache
def _good() -> str:
    with TemporaryDirectory() as folder:
        write_tokenizer(Path(folder))
        return (Path(folder) / "tokenizer.json").read_text()


def tokenizer(change: Callable[[dict[str, Any], Random], object]) -> Spoil:
    """The base's tokenizer.json, changed."""

    def spoil(folder: Path, draw: Random) -> None:
        found = json.loads(_good())
        change(found, draw)
        (folder / "tokenizer.json").write_text(json.dumps(found))

    return spoil


def _added(*ids: int) -> Spoil:
    def change(found: dict[str, Any], draw: Random) -> None:
        token = {
            "content": "<own>",
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        found["added_tokens"].append(token | {"id": draw.choice(ids)})

    return tokenizer(change)


def _vocabulary(*ids: Any) -> Spoil:
    return tokenizer(lambda found, draw: found["model"]["vocab"].update({"own": draw.choice(ids)}))


TEXTS = (
    Kind(
        "a tokenizer that is no JSON",
        _ROW,
        "tokenizer.json",
        text("tokenizer.json", "", "{", "[]", "null", b"\xff", b"\x80\x04.", "NaN"),
    ),
    Kind(
        "a tokenizer of nesting",
        _ROW,
        "tokenizer.json",
        text("tokenizer.json", "[" * 200_000, '{"a":' * 200_000, '{"model":' * 200 + "0" + "}" * 200),
    ),
    Kind(
        "a tokenizer of another model",
        _ROW,
        "tokenizer.json",
        tokenizer(lambda found, draw: found["model"].update({"type": draw.choice(("Evil", "", None, 4, ["BPE"]))})),
    ),
    Kind("a tokenizer without a part", _ROW, "tokenizer.json", tokenizer(lambda found, draw: found.pop("model"))),
    Kind("a vocabulary past the base's", _ROW, "vocabulary|ids|tokenizer", _vocabulary(320, 5000, (1 << 32) - 1)),
    Kind("ids that are none", _ROW, "tokenizer.json", _vocabulary(-1, 1 << 32, 1 << 64, 1.5, "1", None)),
    Kind("added tokens past the base's", _ROW, "tokenizer|vocabulary|ids", _added((1 << 32) - 1, -1, 1 << 40), 3),
    Kind(
        "a decoder that multiplies",
        _ROW,
        "decoder.*Replace",
        tokenizer(
            lambda found, draw: found.update(
                decoder={
                    "type": "Sequence",
                    "decoders": [
                        {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * draw.choice((2, 1000))},
                        {"type": "Replace", "pattern": {"String": draw.choice(("", "a"))}, "content": "a" * 90},
                    ],
                }
            )
        ),
    ),
    Kind(
        "ids around a text past the base's",
        _ROW,
        "ids",
        tokenizer(
            lambda found, draw: found.update(
                post_processor={
                    "type": "BertProcessing",
                    "sep": ["</s>", draw.choice((320, 99_999, (1 << 32) - 1))],
                    "cls": ["<s>", 1],
                }
            )
        ),
    ),
    Kind(
        "tokens that settings alone name",
        _ROW,
        "names the token",
        text(
            "tokenizer_config.json",
            '{"added_tokens_decoder": {"319": {"content": "<own>"}}}',
            '{"additional_special_tokens": ["<own>"]}',
            '{"bos_token": "<own>"}',
        ),
    ),
    Kind("a sparse giant of a tokenizer", _ROW, "tokenizer.json", sparse("tokenizer.json", 1 << 40), 1),
    Kind(
        "settings that are none",
        _ROW,
        "tokenizer_config.json",
        text("tokenizer_config.json", "", "[]", "4", b"\xff", "{", "[" * 100_000),
    ),
    Kind("a sparse giant of settings", _ROW, "tokenizer_config.json", sparse("tokenizer_config.json", 1 << 40), 1),
    Kind(
        "an end that is no token",
        _ROW,
        "eos_token",
        text(
            "tokenizer_config.json",
            '{"eos_token": "<none>"}',
            '{"eos_token": {"content": "\\ud800"}}',
            json.dumps({"eos_token": "x" * 90_000}),
        ),
    ),
    Kind(
        "a template that is none",
        _ROW,
        "template",
        text("chat_template.jinja", "{% if %}", "{{", "{% for a in b %}", "{% evil %}", "{{ a | evil }}", b"\xff"),
    ),
    Kind(
        "a template of nesting",
        _ROW,
        "template",
        text(
            "chat_template.jinja",
            "{{ " + "(" * 100_000,
            "{% if a %}" * 40_000,
            "{{ " + "[" * 60_000 + "]" * 60_000 + " }}",
        ),
    ),
    Kind("a template of 600 KB", _ROW, "template", text("chat_template.jinja", "a" * 600_000), 1),
    Kind(
        "a template in settings that is none",
        _ROW,
        "template",
        text(
            "tokenizer_config.json",
            '{"chat_template": "{% if %}"}',
            json.dumps({"chat_template": "{{ " + "(" * 100_000}),
        ),
    ),
    Kind(
        "ends that are none",
        _ROW,
        "generation_config.json",
        text(
            "generation_config.json",
            '{"eos_token_id": "2"}',
            '{"eos_token_id": -1}',
            '{"eos_token_id": [1.5]}',
            '{"eos_token_id": 4294967296}',
            '{"eos_token_id": true}',
            json.dumps({"eos_token_id": [1] * 9000}),
        ),
    ),
    Kind(
        "generation settings that are none",
        _ROW,
        "generation_config.json",
        text("generation_config.json", "", "[]", "{", b"\xff", "[" * 100_000),
    ),
    Kind("a tokenizer's companions alone", r"files\..+", "without tokenizer.json", text("vocab.json", "{}"), 1),
    Kind("another kind of template", r"files\..+", "chat_template", text("chat_template.json", "{}"), 1),
)

__all__ = ["TEXTS"]
