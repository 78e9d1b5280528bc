"""The matcher answers what ``re`` answers, and cannot be made to run for long."""

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lorry.adapters.config.pattern import MatchBudget, Pattern, PatternRefused

NAMES = [f"model.layers.{layer}.{tail}" for layer in (0, 1, 12) for tail in ("self_attn.q_proj", "mlp.up_proj")]

_atoms = st.sampled_from(
    [
        r"a",
        r".",
        r"\.",
        r"l",
        r"[a-z]",
        r"[^.]",
        r"[0-9_]",
        r"\d",
        r"\w",
        r"\W",
        r"model",
        r"layers",
        r"proj",
        r"self_attn",
        r"(?:mlp|self_attn)",
        r"\b",
        r"^",
        r"$",
        r"(?=m)",
        r"(?!.*mlp)",
        r"[]a]",
        r"[a-]",
        r"1",
        r"12",
        r"q_proj",
    ]
)
_repeats = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,3}", "*?", "{,2}", "{2,}"])
_patterns = st.recursive(
    _atoms,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        st.tuples(inner, _repeats).map(lambda pair: f"({pair[0]}){pair[1]}"),
        inner.map(lambda text: f".*{text}.*"),
    ),
    max_leaves=6,
).filter(lambda text: len(re.findall(r"[*+]|,\}", text)) <= 5)  # what re itself can take


@settings(max_examples=400, deadline=None)
@given(_patterns)
def test_agrees_with_re(source: str) -> None:
    pattern = Pattern.compile(source)
    for name in NAMES:
        assert pattern.fullmatch(name) == (re.fullmatch(source, name) is not None)
        assert pattern.matches_after_dot(name) == (re.match(rf"(.*\.)?({source})$", name) is not None)


@pytest.mark.parametrize(
    ("source", "name", "expected"),
    [
        (r".*\.layers\.(1[0-9]|2)\..*(q|v)_proj", "model.layers.12.self_attn.q_proj", True),
        (r".*\.layers\.(1[0-9]|2)\..*(q|v)_proj", "model.layers.1.self_attn.q_proj", False),
        (r"^(model)(?!.*(lm_head|mlp)).*", "model.layers.0.self_attn.q_proj", True),
        (r"^(model)(?!.*(lm_head|mlp)).*", "model.layers.0.mlp.up_proj", False),
        (r"(?:.*?(?:self_attn|mlp).*?(?:q_proj|up_proj).*?)|(?:\bmodel\.layers\.[\d]{1,}\.x)", NAMES[1], True),
    ],
)
def test_patterns_seen_in_the_field(source: str, name: str, expected: bool) -> None:
    assert Pattern.compile(source).fullmatch(name) is expected


@pytest.mark.parametrize("source", ["(.*)*x", "(a|.*.*)*b", "((.*)*)*((.*)*)*z", "(.*.*.*.*.*.*.*.*.*.*)*!"])
def test_catastrophic_patterns_are_quick(source: str) -> None:
    begin = time.perf_counter()
    assert not Pattern.compile(source).fullmatch(NAMES[0])
    assert time.perf_counter() - begin < 0.5


def test_work_is_bounded_over_all_patterns_that_share_a_budget() -> None:
    budget = MatchBudget(1000)
    pattern = Pattern.compile("(.*)*x", budget)

    def match_often() -> None:
        for _ in range(100):
            pattern.fullmatch(NAMES[0])

    with pytest.raises(PatternRefused, match="costs too much"):
        match_often()


@pytest.mark.parametrize("inner", ["", "a?", ".*", "(?=m)"])
def test_nested_counts_are_bounded(inner: str) -> None:
    pattern = Pattern.compile("(" * 8 + inner + "){256}" * 8)
    begin = time.perf_counter()
    with pytest.raises(PatternRefused, match="costs too much"):
        pattern.fullmatch(NAMES[0])
    assert time.perf_counter() - begin < 10


@pytest.mark.parametrize(
    "source",
    [
        *[
            r"(",
            r")",
            r"a)|(b",
            r"[a",
            r"*a",
            r"a**",
            r"a*+",
            r"{2}",
            r"a{999}",
            r"a{2,1}",
            r"(?i)a",
            r"(?<=a)b",
            r"(a)\1",
            r"[[a]",
            r"^*",
            r"(?P<x>a)",
            r"\q",
            r"[z-a]",
            r"(?=a)*",
            r"[\D]",
            r"a{,}",
        ],
        "\\",
        "é",
        "a" * 3000,
        "(" * 30 + ")" * 30,
    ],
)
def test_syntax_that_is_not_taken_is_refused(source: str) -> None:
    with pytest.raises(PatternRefused):
        Pattern.compile(source)
