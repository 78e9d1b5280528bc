"""The prefix key: every field counts, and no two keys read the same."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorry.ids import AdapterDigest, BaseDigest
from lorry.kvcache import BlockHash, PrefixKey, RopeKey, block_hash

KEY = PrefixKey(
    parent=None,
    base=BaseDigest("b" * 64),
    quantization="none",
    tokenizer_sha256="c" * 64,
    kv_dtype="float32",
    kv_scales=(),
    rope=RopeKey("default", 10000.0),
    page_tokens=4,
    engine_build="0.1.0",
    adapter=None,
    tenant_salt=b"salt",
    cache_scope="",
    token_ids=(1, 2, 3, 4),
)

CHANGES: dict[str, list[Any]] = {
    "parent": [BlockHash(b"\0" * 32), BlockHash(b"\1" * 32), BlockHash(b"")],
    "base": [BaseDigest("d" * 64)],
    "quantization": ["int8"],
    "tokenizer_sha256": ["d" * 64],
    "kv_dtype": ["bfloat16"],
    "kv_scales": [(1.0,), (1.0, 1.0), (0.0,), (-0.0,)],
    "rope": [
        RopeKey("linear", 10000.0),
        RopeKey("default", 500000.0),
        RopeKey("default", 10000.0, (("factor", 2.0),)),
        RopeKey("default", 10000.0, (("factor", 4.0),)),
    ],
    "page_tokens": [8],
    "engine_build": ["0.1.1"],
    "adapter": [AdapterDigest("a" * 64), AdapterDigest("e" * 64), AdapterDigest("")],
    "tenant_salt": [b"pepper", b""],
    "cache_scope": ["project"],
    "token_ids": [(1, 2, 3, 5), (1, 2, 3), (4, 3, 2, 1), ()],
}


def test_every_field_is_covered_by_a_change() -> None:
    assert CHANGES.keys() == {entry.name for entry in fields(PrefixKey)}


@pytest.mark.parametrize("field", sorted(CHANGES))
def test_any_one_changed_field_changes_the_key(field: str) -> None:
    keys = [KEY, *(replace(KEY, **{field: value}) for value in CHANGES[field])]
    assert len({block_hash(key) for key in keys}) == len(keys)


def test_equal_keys_hash_equal_and_the_value_is_final() -> None:
    assert block_hash(KEY) == block_hash(replace(KEY))
    assert len(block_hash(KEY)) == 32
    assert block_hash(KEY).hex() == "48d05536c2667d940743133a5d5657d391c46c106cc5e65fea7e1f10de2b1cdf"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"quantization": "ab", "tokenizer_sha256": "c"}, {"quantization": "a", "tokenizer_sha256": "bc"}),
        ({"engine_build": "x", "cache_scope": ""}, {"engine_build": "", "cache_scope": "x"}),
        ({"tenant_salt": b"ab", "cache_scope": "c"}, {"tenant_salt": b"a", "cache_scope": "bc"}),
        ({"adapter": None, "cache_scope": "0"}, {"adapter": AdapterDigest("0"), "cache_scope": ""}),
        ({"page_tokens": 1, "engine_build": "1x"}, {"page_tokens": 11, "engine_build": "x"}),
        (
            {"rope": RopeKey("a", 1.0, (("b", 1.0), ("c", 1.0)))},
            {"rope": RopeKey("a", 1.0, (("bc", 1.0),))},
        ),
    ],
)
def test_moving_bytes_across_a_boundary_is_another_key(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert block_hash(replace(KEY, **one)) != block_hash(replace(KEY, **other))


texts = st.text(alphabet="ab\x00:0", max_size=3)
keys = st.builds(
    PrefixKey,
    parent=st.none() | st.sampled_from([BlockHash(b"a"), BlockHash(b"ab")]),
    base=texts,
    quantization=texts,
    tokenizer_sha256=texts,
    kv_dtype=texts,
    kv_scales=st.sampled_from([(), (1.0,), (1.0, 2.0)]),
    rope=st.builds(RopeKey, texts, st.sampled_from([1.0, 2.0]), st.sampled_from([(), (("a", 1.0),)])),
    page_tokens=st.integers(1, 3),
    engine_build=texts,
    adapter=st.none() | texts,
    tenant_salt=st.binary(max_size=2),
    cache_scope=texts,
    token_ids=st.lists(st.integers(0, 3), max_size=3).map(tuple),
)


@given(keys, keys)
def test_two_keys_hash_equal_only_if_they_are_equal(one: PrefixKey, other: PrefixKey) -> None:
    assert (block_hash(one) == block_hash(other)) == (one == other)


def test_a_value_without_an_encoding_is_refused() -> None:
    with pytest.raises(TypeError, match="object"):
        block_hash(replace(KEY, engine_build=object()))  # type: ignore[arg-type]
