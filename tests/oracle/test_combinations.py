"""Combinations of fields that nobody thought of: PEFT's logits, or a refusal that has to be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from soak_oracle import soak

from tests.oracle.combinations import Tally, run_examples
from tests.oracle.worlds import BASES, WITHIN, World
from tests.support.results import keep_result

FIND = Callable[[str], World]
SMALL_BASES = ("llama", "mistral", "qwen2", "qwen3")
EXAMPLES_EACH, SOAK_EXAMPLES_EACH = 4, 150


@pytest.mark.parametrize("base", SMALL_BASES)
def test_drawn_together(world_of: FIND, base: str) -> None:
    tally = Tally()
    run_examples(world_of(base), EXAMPLES_EACH, tally)
    assert tally.adapters >= EXAMPLES_EACH, tally


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_thousands_of_them() -> None:
    result = soak(list(BASES), SOAK_EXAMPLES_EACH, None)
    keep_result("oracle", result)
    assert result["compared_adapters"] > SOAK_EXAMPLES_EACH * len(BASES)


def test_the_soak_says_what_it_did() -> None:
    result = soak(["mistral"], 1, 0)
    assert result["examples"] >= 1
    assert result["compared_adapters"] == result["compared_adapters_by_base"]["mistral"]
    assert result["largest_difference_of_a_logit"] < WITHIN
