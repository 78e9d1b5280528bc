"""Every RPC with fields of any content that a proto can carry: each is answered from the table of errors, never by an
exception, and nobody is let in for it."""

from __future__ import annotations

import random
from dataclasses import astuple
from pathlib import Path
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor

from tests.security.calls import CALLS
from tests.security.hostile import NAMES, URIS
from tests.security.world import METHODS, world

ROUNDS = 12
"""Messages of each RPC and role."""
NUMBERS = (0, 1, 2, 7, 255, 1000, 2**31 - 1, -1, -(2**31))
WIDE = (*NUMBERS, 2**53, 2**63 - 1, -(2**63))
UNSIGNED = (0, 1, 2, 1000, 2**31, 2**32 - 1)
REALS = (0.0, -0.0, 1.0, -1.0, 1e-45, 3e38, float("inf"), float("-inf"), float("nan"))
Kind = FieldDescriptor
RANGES: dict[int, tuple[Any, ...]] = {
    Kind.CPPTYPE_INT32: NUMBERS,
    Kind.CPPTYPE_INT64: WIDE,
    Kind.CPPTYPE_UINT32: UNSIGNED,
    Kind.CPPTYPE_UINT64: (*UNSIGNED, 2**63, 2**64 - 1),
    Kind.CPPTYPE_FLOAT: REALS,
    Kind.CPPTYPE_DOUBLE: (*REALS, 1e308),
    Kind.CPPTYPE_BOOL: (False, True),
    Kind.CPPTYPE_ENUM: (0, 1, 2, 3, 4, 99, -1, 2**31 - 1),
}


def fill(draw: random.Random, message: Any, words: list[str], depth: int = 0) -> None:
    for field in message.DESCRIPTOR.fields:
        if draw.random() < 0.35:
            continue
        repeated = field.is_repeated
        target: Any = getattr(message, field.name) if repeated or field.cpp_type == Kind.CPPTYPE_MESSAGE else None
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
            for _ in range(draw.randrange(3)):
                target[some(draw, key, words)] = some(draw, value, words)
        elif field.cpp_type == Kind.CPPTYPE_MESSAGE:
            if depth < 4:
                for one in [target.add() for _ in range(draw.randrange(4))] if repeated else [target]:
                    one.SetInParent()
                    fill(draw, one, words, depth + 1)
        elif repeated:
            target.extend([some(draw, field, words) for _ in range(draw.randrange(4))])
        else:
            setattr(message, field.name, some(draw, field, words))


def some(draw: random.Random, field: FieldDescriptor, words: list[str]) -> Any:
    if field.cpp_type == Kind.CPPTYPE_STRING:
        text = draw.choice(words) if draw.random() < 0.6 else draw.choice((*NAMES, *URIS))
        return text.encode() if field.type == Kind.TYPE_BYTES else text
    return draw.choice(RANGES[field.cpp_type])


async def test_no_request_is_answered_by_an_exception(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.tenant("anna", "owner", "member")
        anna = await here.furnish("anna")
        words = ["", "x", "new", "json", "prod", "tiny", "1" * 64, *map(str, astuple(anna)), anna.version, anna.alias]
        words += ["s3://bucket/tenant-a/", "adapter_config.json", "{}", '{"model_type":"llama"}']
        draw = random.Random(20261130)
        bad = []
        for path in sorted(CALLS):
            kind = message_factory.GetMessageClass(METHODS[path].input_type)
            for who in ("admin", "anna owner"):
                for _ in range(ROUNDS):
                    request = kind()
                    fill(draw, request, words)
                    if path.endswith(("WatchAdapterVersion", "PreloadAdapterVersion")) and draw.random() < 0.9:
                        continue  # may wait as long as they are told
                    found = (await here.call(path, request, here.keys[who])).code
                    if found in ("INTERNAL", "UNKNOWN", "DATA_LOSS"):
                        bad.append((path, who, str(request)[:600], found))
        assert bad == []
