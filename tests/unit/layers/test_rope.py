"""The rotary configuration in both spellings, and what of it is refused."""

from __future__ import annotations

from dataclasses import astuple, fields
from typing import Any

import pytest

from lorry.errors import UnsupportedBase
from lorry.kvcache.prefix import RopeKey
from lorry.layers.rope import RopeSpec
from lorry.layers.spec import DecoderSpec

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"factor": 4.0, "original_max_position_embeddings": 64}


def rope(**config: Any) -> RopeSpec:
    return DecoderSpec.from_config({"model_type": "llama", "max_position_embeddings": 256, **config}).rope


def both(kind: str, theta: float = 5000.0, **parameters: Any) -> RopeSpec:
    """The three ways to write it are one configuration."""
    old = rope(rope_theta=theta, rope_scaling={"type": kind, **parameters})
    middle = rope(rope_theta=theta, rope_scaling={"rope_type": kind, "type": kind, **parameters}, rope_parameters=None)
    new = rope(rope_parameters={"rope_type": kind, "rope_theta": theta, **parameters})
    assert old == middle == new
    return new


def test_plain() -> None:
    assert rope() == RopeSpec("default", 10000.0)
    assert rope(rope_theta=500000) == RopeSpec("default", 500000.0)
    assert rope(rope_parameters={}, rope_scaling={}) == RopeSpec("default", 10000.0)
    assert rope(rope_parameters={"rope_theta": 7.0, "partial_rotary_factor": 1.0}) == RopeSpec("default", 7.0)
    assert both("default") == RopeSpec("default", 5000.0)


def test_scaled_kinds_keep_their_parameters_sorted_and_filled_in() -> None:
    assert both("linear", factor=2) == RopeSpec("linear", 5000.0, (("factor", 2.0),))
    assert both("llama3", **LLAMA3) == RopeSpec("llama3", 5000.0, tuple(sorted(LLAMA3.items())))
    assert both("yarn", **YARN).scaling == (
        ("attention_factor", 0.1 * 1.3862943611198906 + 1.0),
        ("beta_fast", 32.0),
        ("beta_slow", 1.0),
        ("factor", 4.0),
        ("original_max_position_embeddings", 64.0),
        ("truncate", 1.0),
    )


def test_it_is_what_a_prefix_key_takes() -> None:
    assert [field.name for field in fields(RopeSpec)] == [field.name for field in fields(RopeKey)]
    spec = both("yarn", **YARN)
    key = RopeKey(*astuple(spec))
    assert (key.kind, key.theta, key.scaling) == (spec.kind, spec.theta, spec.scaling)


def test_theta_inside_wins_over_theta_beside() -> None:
    assert rope(rope_theta=1.5, rope_parameters={"rope_theta": 2.5}).theta == 2.5


@pytest.mark.parametrize("kind", ["yarn", "llama3"])
def test_where_the_original_length_comes_from(kind: str) -> None:
    name = "original_max_position_embeddings"
    rest = {key: value for key, value in {**LLAMA3, "rope_type": kind}.items() if key != name}
    if kind == "yarn":
        rest = {"rope_type": kind, "factor": 4.0}
    assert rope(rope_parameters=rest).parameter(name) == 256
    assert rope(rope_parameters={**rest, name: 64}).parameter(name) == 64
    assert rope(rope_parameters={**rest, name: 64}, **{name: 32}).parameter(name) == 32
    assert rope(**{name: 32}) == RopeSpec("default", 10000.0), "it means nothing without a scaling"


def test_the_attention_factor_of_yarn() -> None:
    def factor(**parameters: Any) -> float:
        return both("yarn", **{**YARN, **parameters}).parameter("attention_factor")

    plain = factor()
    assert factor(attention_factor=0.5) == 0.5
    assert factor(mscale=1.0, mscale_all_dim=1.0) == 1.0
    assert factor(mscale=2.0, mscale_all_dim=1.0) == pytest.approx((plain + plain - 1) / plain)
    assert factor(mscale=2.0) == factor(mscale=0, mscale_all_dim=0) == plain
    assert factor(factor=1.0) == factor(factor=0.5) == 1.0
    assert factor(factor=None) == plain, "256 / 64"


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("rope_type", {"rope_type": "dynamic", "factor": 2.0}),
    ("rope_type", {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}),
    ("rope_type", {"type": "su"}),
    ("rope_type", {"rope_type": "proportional"}),
    ("rope_type", {"rope_type": "mrope"}),
    ("rope_type", {"rope_type": ["yarn"]}),
    ("rope_type", {"rope_type": None}),
    ("type", {"rope_type": "yarn", "type": "linear", **YARN}),
    ("full_attention", {"full_attention": {"rope_type": "default"}}),
    ("partial_rotary_factor", {"rope_type": "default", "partial_rotary_factor": 0.5}),
    ("rope_theta", {"rope_theta": None}),
    ("rope_theta", {"rope_theta": "1e4"}),
    ("rope_theta", {"rope_theta": 1, "rope_type": "yarn", **YARN}),
    ("factor", {"rope_type": "default", "factor": 1.0}),
    ("factor", {"rope_type": "linear"}),
    ("factor", {"rope_type": "linear", "factor": None}),
    ("factor", {"rope_type": "linear", "factor": 0}),
    ("factor", {"rope_type": "yarn"}),
    ("low_freq_factor", {"rope_type": "llama3", **LLAMA3, "low_freq_factor": 0}),
    ("high_freq_factor", {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}),
    ("original_max_position_embeddings", {"rope_type": "llama3", **LLAMA3, "original_max_position_embeddings": None}),
    ("attention_factor", {"rope_type": "yarn", **YARN, "attention_factor": -1.0}),
    ("beta_fast", {"rope_type": "yarn", **YARN, "beta_fast": "32"}),
    ("truncate", {"rope_type": "yarn", **YARN, "truncate": "no"}),
    ("finetuned", {"rope_type": "yarn", **YARN, "finetuned": True}),
    ("mrope_section", {"rope_type": "default", "mrope_section": [16, 24, 24]}),
]


@pytest.mark.parametrize(("key", "parameters"), REFUSED, ids=str)
def test_what_is_not_computed_is_refused_by_name(key: str, parameters: dict[str, Any]) -> None:
    named = rf"(rope_scaling\.|rope_parameters\.|\b){key}"
    for name in ("rope_scaling", "rope_parameters"):
        with pytest.raises(UnsupportedBase, match=named):
            rope(**{name: parameters})


def test_two_spellings_that_differ_are_refused() -> None:
    with pytest.raises(UnsupportedBase, match=r"rope_scaling: .*keep one"):
        rope(rope_scaling={"type": "linear", "factor": 2.0}, rope_parameters={"rope_type": "linear", "factor": 4.0})
    with pytest.raises(UnsupportedBase, match="rope_scaling"):
        rope(rope_scaling="yarn")
