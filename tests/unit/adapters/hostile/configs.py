"""Configs that are none, bombs, and fields of the wrong kind."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from tests.unit.adapters import craft
from tests.unit.adapters.hostile.kinds import CONFIG_NAME, Kind, Spoil, config, field, sparse

_FILE = f"config.{CONFIG_NAME}"
_REST = json.dumps(craft.CONFIG).encode()[1:]


def raw(*contents: bytes) -> Spoil:
    return config(lambda draw: draw.choice(contents))


def inserted(*members: bytes) -> Spoil:
    return raw(*(b"{" + member + b"," + _REST for member in members))


def without(*fields: str) -> Spoil:
    def make(draw: Random) -> bytes:
        gone = draw.choice(fields)
        return json.dumps({name: value for name, value in craft.CONFIG.items() if name != gone}).encode()

    return config(make)


def _deep(draw: Random) -> bytes:
    depth = draw.choice((9, 1000, 60_000))
    opening, closing = draw.choice(((b"[", b"]"), (b'{"a":', b"}")))
    return b'{"rank_pattern":' + opening * depth + closing * depth + b"," + _REST


def _crowd(draw: Random) -> bytes:
    """As many unknown fields as fit."""
    letters = draw.choice(("k%x", "%x", "lora_%x"))
    return json.dumps({letters % index: 0 for index in range(15_000)} | craft.CONFIG, separators=(",", ":")).encode()


def _unknown(draw: Random) -> bytes:
    name = draw.choice(
        ("use_evil", "R", "r ", "lora-alpha", "__class__", "\u0440", "a\x00b", "\n", "\ud800", "x" * 9000)
    )
    return json.dumps({name: draw.choice((1, None, {"a": [1]}))} | craft.CONFIG).encode()


def _patterns(count: int, value: Any) -> bytes:
    return json.dumps(craft.CONFIG | {"rank_pattern": {f"a{index}.*": value for index in range(count)}}).encode()


BAD_RANKS = (True, False, 4.0, "4", 0, -1, 1 << 31, 1 << 40, 10**50, None, [4], {"r": 4}, 1e300)
BOMBS = (
    "(a+)+$",
    "(.*)*x",
    "(.*.*)*q_proj",
    "((a|a)*)*b",
    "(?:(?:.*)*)*z",
    "(x+x+)+y",
    ".*.*.*.*.*.*.*.*.*.*=",
    "(\\w+\\s?)*$",
)
NOT_TAKEN = (
    "(?<=a)b",
    "(a)\\1",
    "(?P<n>a)(?P=n)",
    "(",
    "[",
    "a{1,100000}",
    "(?i)q_proj",
    "\\p{L}",
    "*",
    "a**",
    "(" * 500,
    "[a-" * 50,
)

CONFIGS = (
    Kind("an empty config", _FILE, "not readable as JSON", raw(b"", b" ", b"\x00")),
    Kind(
        "a config of another type",
        _FILE,
        "must be a JSON object|is not JSON",
        raw(b"[]", b"null", b'"x"', b"4", b"true", b"NaN"),
    ),
    Kind(
        "a config that is no JSON",
        _FILE,
        "not readable as JSON",
        raw(b"{'r': 4}", b"{r: 4}", b'{"r": 4,}', b'{"r": 4}}', b"r: 4", b'{"r": +4}'),
    ),
    Kind(
        "a config cut off",
        _FILE,
        "not readable as JSON",
        config(lambda draw: json.dumps(craft.CONFIG).encode()[: -draw.randint(1, 60)]),
    ),
    Kind(
        "a config that is not UTF-8",
        _FILE,
        "not UTF-8",
        raw(b"\xff\xfe{}", b'{"r":"\xc0\x80"}', json.dumps(craft.CONFIG).encode("utf-16")),
    ),
    Kind("a config with a byte order mark", _FILE, "not readable as JSON", raw(b"\xef\xbb\xbf{" + _REST), 1),
    Kind(
        "a pickled config",
        _FILE,
        "not UTF-8|not readable",
        raw(b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00}.", b"(dp0\n."),
    ),
    Kind("a config of nesting", _FILE, "nested deeper than 8", config(_deep)),
    Kind(
        "a field twice", _FILE, "is there twice", inserted(b'"r":4', b'"r":8', b'"\\u0072":4', b'"lora_alph\\u0061":1')
    ),
    Kind("a pattern twice", _FILE, "'q_proj' is there twice", inserted(b'"rank_pattern":{"q_proj":4,"q_proj":4}')),
    Kind(
        "constants that are no JSON",
        _FILE,
        "is not JSON",
        inserted(b'"x":NaN', b'"alpha_pattern":{"q_proj":Infinity}', b'"lora_dropout":-Infinity'),
    ),
    Kind("a number past floats", _FILE, "not finite", inserted(b'"lora_dropout":1e999', b'"x":-1e309')),
    Kind(
        "a number of endless digits", _FILE, "digits, over 64", inserted(b'"x":' + b"7" * 200_000, b'"x":-' + b"1" * 65)
    ),
    Kind("a string without an end", _FILE, "not readable as JSON", raw(b'{"' + b'\\"' * 130_000)),
    Kind(
        "a config of 300 KB",
        _FILE,
        "over 262144 bytes",
        config(lambda draw: json.dumps(craft.CONFIG | {"revision": "x" * 300_000}).encode()),
        1,
    ),
    Kind("a config of 90 MB", _FILE, "over 262144 bytes", config(lambda draw: b" " * (90 << 20) + b"{}"), 1),
    Kind("a sparse giant of a config", _FILE, "over 262144 bytes", sparse(CONFIG_NAME, 1 << 40), 1),
    Kind("15,000 unknown fields", r"config\..+", "unknown field", config(_crowd)),
    Kind("an unknown field", r"config\..+", "unknown field", config(_unknown), 8),
    Kind(
        "a field of the wrong letters",
        r"config\..+",
        "unknown field",
        inserted(b'"LORA_ALPHA":8', b'"target-modules":[]', b'"Peft_type":"LORA"'),
    ),
    Kind("no type", "config.peft_type", "absent", without("peft_type"), 1),
    Kind(
        "a type that is not served",
        "config.peft_type",
        "is refused",
        field("peft_type", "lora", "VERA", "LOHA", "PROMPT_TUNING", "", None, ["LORA"], {"LORA": 1}, 1),
        6,
    ),
    Kind(
        "another task",
        "config.task_type",
        "is refused",
        field("task_type", "SEQ_CLS", "causal_lm", "", ["CAUSAL_LM"], True),
    ),
    Kind("a rank that is none", "config.r", "must be an integer of at least 1", field("r", *BAD_RANKS), 10),
    Kind("a rank past the limit", "rank", "over|has rank", field("r", 65, 257, (1 << 31) - 1)),
    Kind(
        "an alpha that is none",
        "config.lora_alpha",
        "must be a finite number",
        field("lora_alpha", True, "8", None, [8], 1e300, 10**60, -(10**31), {}),
        6,
    ),
    Kind(
        "a flag that is none",
        "config.use_(rslora|dora)",
        "true or false",
        config(
            lambda draw: json.dumps(
                craft.CONFIG
                | {draw.choice(("use_rslora", "use_dora")): draw.choice(("true", 1, 0, None, [], {"a": 1}))}
            ).encode()
        ),
        6,
    ),
    Kind(
        "rank patterns of another type",
        "config.rank_pattern",
        "must map patterns",
        field("rank_pattern", [1], "q_proj", 4, True),
    ),
    Kind(
        "rank patterns without ranks",
        "config.rank_pattern",
        "must be an integer",
        config(lambda draw: json.dumps(craft.CONFIG | {"rank_pattern": {"q_proj": draw.choice(BAD_RANKS)}}).encode()),
        8,
    ),
    Kind(
        "thousands of rank patterns",
        "config.rank_pattern",
        "over 64 regular expressions",
        config(lambda draw: _patterns(draw.randint(65, 9000), 4)),
    ),
    Kind(
        "alpha patterns without numbers",
        "config.alpha_pattern",
        "must be a finite number|must map",
        field("alpha_pattern", {"q_proj": "8"}, {"q_proj": True}, {"q_proj": 1e300}, [], "x", {"q_proj": None}),
        4,
    ),
    Kind(
        "a pattern that explodes",
        "config.*",
        "cost|target|refused|taken",
        config(lambda draw: json.dumps(craft.CONFIG | {"target_modules": draw.choice(BOMBS)}).encode()),
        8,
    ),
    Kind(
        "a pattern of ranks that explodes",
        "config.*|rank",
        "cost|nested|rank|taken",
        config(lambda draw: json.dumps(craft.CONFIG | {"rank_pattern": {draw.choice(BOMBS): 3, "q_proj": 3}}).encode()),
        8,
    ),
    Kind(
        "a pattern that is not taken", "config.target_modules", "the pattern", field("target_modules", *NOT_TAKEN), 10
    ),
    Kind(
        "a pattern of 200 KB",
        "config.target_modules",
        "the pattern",
        field("target_modules", "a" * 200_000, "(a|" * 60_000, "a|" * 90_000, "[" + "a" * 100_000 + "]", ".*" * 90_000),
        5,
    ),
    Kind(
        "targets that are none",
        "config.target_modules",
        "names no module|must be a string",
        field("target_modules", None, [], 4, True, {}, {"q_proj": 1}, ["q_proj", 4], [["q_proj"]], [None]),
        6,
    ),
    Kind(
        "targets that are not in the base",
        "config.target_modules",
        "does not target|not target",
        field("target_modules", ["qproj"], ["Q_PROJ"], ["proj"], ["q_proj."], ["../q_proj"], ["layers"], "q_proj"),
        5,
    ),
    Kind(
        "layers that are none",
        "config.layers_to_transform",
        "integer",
        field("layers_to_transform", "0", [0.0], [True], {"0": 1}, [[0]], 1.5),
        4,
    ),
    Kind(
        "layers that are not there",
        "config.target_modules",
        "does not target|not target",
        field("layers_to_transform", [-1], [2], 10**60, [1 << 63]),
    ),
    Kind(
        "a layer list that is none",
        "config.layers_pattern",
        "must be module names|needs layers",
        field("layers_pattern", ["(.*)*"], [1], {"a": 1}, "a b", ["layers"]),
    ),
    Kind(
        "an initialiser that changes the base",
        "config.init_lora_weights",
        "refused|unknown",
        field("init_lora_weights", "pissa", "pissa_niter_16", "olora", "loftq", "corda", "PiSSA", "lora_ga"),
        6,
    ),
    Kind(
        "an initialiser that is none",
        "config.init_lora_weights",
        "refused|unknown",
        field("init_lora_weights", 1, 0, "", [True], {"a": 1}, "true"),
    ),
    Kind(
        "a class of another base",
        "config.auto_mapping",
        "not the base's class",
        field(
            "auto_mapping",
            {"base_model_class": "os.system"},
            {"base_model_class": "BertModel"},
            "__import__",
            {"base_model_class": 1},
        ),
    ),
    Kind(
        "a base name that is none",
        "config.base_model_name_or_path",
        "must be a string",
        field("base_model_name_or_path", 1, ["a"], {"a": 1}, True),
    ),
    Kind(
        "a bias that is none",
        "config.bias",
        "must be|refused",
        field("bias", "ALL", "everything", True, None, ["all"], {}),
    ),
    Kind(
        "saved modules that are none",
        "config.modules_to_save",
        "modules_to_save",
        field("modules_to_save", [1], {"lm_head": 1}, 4, True, "lm_head", [["lm_head"]]),
        6,
    ),
    Kind(
        "token ids that are none",
        "config.trainable_token_indices",
        "trainable_token_indices",
        field(
            "trainable_token_indices",
            [-1],
            [1 << 40],
            [True],
            ["1"],
            {"../a": [1]},
            5,
            [1, 1],
            {"embed_tokens": "x"},
            [1.0],
        ),
        6,
    ),
    Kind(
        "fields that are not served",
        r"config\.(layer_replication|megatron_config|target_parameters|alora_invocation_tokens|use_qalora)",
        "refused",
        config(
            lambda draw: json.dumps(
                craft.CONFIG
                | dict(
                    [
                        draw.choice(
                            (
                                ("layer_replication", [[0, 9]]),
                                ("megatron_config", {"a": 1}),
                                ("target_parameters", ["a.b"]),
                                ("alora_invocation_tokens", [1]),
                                ("use_qalora", True),
                            )
                        )
                    ]
                )
            ).encode()
        ),
        6,
    ),
)

__all__ = ["BAD_RANKS", "BOMBS", "CONFIGS"]
