"""The prefix key: every field counts, and no two keys or chains of ids read the same."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lorry.ids import AdapterDigest, AdapterKey, AdapterScope, BaseDigest
from lorry.kvcache import BlockHash, PrefixKey, RopeKey, block_hash, root_hash


def own(digest: str, scope: str = "own") -> AdapterKey:
    return AdapterKey(AdapterDigest(digest), AdapterScope(scope))


KEY = PrefixKey(
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
)

CHANGES: dict[str, list[Any]] = {
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
    "adapter": [own("a" * 64), own("e" * 64), own(""), own("a" * 64, "theirs")],
    "tenant_salt": [b"pepper", b""],
    "cache_scope": ["project"],
    "owner": ["r1", "r2"],
}


def test_every_field_is_covered_by_a_change() -> None:
    assert CHANGES.keys() == {entry.name for entry in fields(PrefixKey)}


@pytest.mark.parametrize("field", sorted(CHANGES))
def test_any_one_changed_field_changes_the_key(field: str) -> None:
    keys = [KEY, *(replace(KEY, **{field: value}) for value in CHANGES[field])]
    assert len({root_hash(key) for key in keys}) == len(keys)


def test_equal_keys_hash_equal_and_the_value_is_final() -> None:
    assert root_hash(KEY) == root_hash(replace(KEY))
    assert len(root_hash(KEY)) == 32
    assert root_hash(KEY).hex() == "87bb1c72cb329ebe20a86990a97860689909d87a733980764f7f29885c9cce49"
    assert (
        block_hash(root_hash(KEY), (1, 2, 3, 4)).hex()
        == "83b3251f98270f7699c945910bcbe8cc041679a4a28836993f0dd2658b07ea6a"
    )


def test_a_block_is_known_by_every_id_before_it_and_its_own() -> None:
    root = root_hash(KEY)
    chains = [((1, 2), (3, 4)), ((2, 1), (3, 4)), ((1, 2), (4, 3)), ((1, 2), (3, 5)), ((3, 4), (1, 2))]
    ends = {block_hash(block_hash(root, first), second) for first, second in chains}
    assert len(ends) == len(chains)
    other = root_hash(replace(KEY, tenant_salt=b"pepper"))
    assert block_hash(other, (1, 2)) != block_hash(root, (1, 2))
    assert block_hash(root, (1, 2)) != block_hash(block_hash(root, (1,)), (2,))


@given(st.lists(st.integers(0, 1 << 40), max_size=4), st.lists(st.integers(0, 1 << 40), max_size=4))
def test_ids_hash_equal_only_if_they_are_equal(one: list[int], other: list[int]) -> None:
    parent = BlockHash(b"p" * 32)
    assert (block_hash(parent, one) == block_hash(parent, other)) == (one == other)
    assert block_hash(parent, tuple(one)) == block_hash(parent, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"quantization": "ab", "tokenizer_sha256": "c"}, {"quantization": "a", "tokenizer_sha256": "bc"}),
        ({"engine_build": "x", "cache_scope": ""}, {"engine_build": "", "cache_scope": "x"}),
        ({"tenant_salt": b"ab", "cache_scope": "c"}, {"tenant_salt": b"a", "cache_scope": "bc"}),
        ({"adapter": None, "cache_scope": "0"}, {"adapter": own("0"), "cache_scope": ""}),
        ({"adapter": own("ab", "c")}, {"adapter": own("a", "bc")}),
        ({"cache_scope": "ab", "owner": "c"}, {"cache_scope": "a", "owner": "bc"}),
        ({"page_tokens": 1, "engine_build": "1x"}, {"page_tokens": 11, "engine_build": "x"}),
        (
            {"rope": RopeKey("a", 1.0, (("b", 1.0), ("c", 1.0)))},
            {"rope": RopeKey("a", 1.0, (("bc", 1.0),))},
        ),
    ],
)
def test_moving_bytes_across_a_boundary_is_another_key(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert root_hash(replace(KEY, **one)) != root_hash(replace(KEY, **other))


texts = st.text(alphabet="ab\x00:0", max_size=3)
keys = st.builds(
    PrefixKey,
    base=texts,
    quantization=texts,
    tokenizer_sha256=texts,
    kv_dtype=texts,
    kv_scales=st.sampled_from([(), (1.0,), (1.0, 2.0)]),
    rope=st.builds(RopeKey, texts, st.sampled_from([1.0, 2.0]), st.sampled_from([(), (("a", 1.0),)])),
    page_tokens=st.integers(1, 3),
    engine_build=texts,
    adapter=st.none() | st.builds(AdapterKey, texts, texts),
    tenant_salt=st.binary(max_size=2),
    cache_scope=texts,
    owner=texts,
)


@given(keys, keys)
def test_two_keys_hash_equal_only_if_they_are_equal(one: PrefixKey, other: PrefixKey) -> None:
    assert (root_hash(one) == root_hash(other)) == (one == other)


def test_a_value_without_an_encoding_is_refused() -> None:
    with pytest.raises(TypeError, match="object"):
        root_hash(replace(KEY, engine_build=object()))  # type: ignore[arg-type]  # on purpose
