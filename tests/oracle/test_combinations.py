"""Combinations of fields that nobody thought of: PEFT's logits, or a refusal that has to be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from tests.oracle.combinations import Combinations, Tally, kinds
from tests.oracle.worlds import BASES, World
from tests.support.results import keep_result
from tests.support.zoo import Kind, peft_version

FIND = Callable[[str], World]
SMALL_BASES = ("llama", "mistral", "qwen2", "qwen3")
EXAMPLES_EACH, SOAK_EXAMPLES_EACH = 5, 400


def run(world: World, examples: int, tally: Tally) -> None:
    combinations = Combinations(world, tally)

    @settings(
        max_examples=examples,
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],  # the message names the one kind: nothing to shrink
        suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(drawn=st.lists(kinds, min_size=3, max_size=3), seed=st.integers(0, 1000))
    def each(drawn: Sequence[Kind], seed: int) -> None:
        assume(combinations.example(drawn, seed))

    each()


@pytest.mark.parametrize("base", SMALL_BASES)
def test_drawn_together(world_of: FIND, base: str) -> None:
    tally = Tally()
    run(world_of(base), EXAMPLES_EACH, tally)
    assert tally.adapters >= EXAMPLES_EACH, tally


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_thousands_of_them(tmp_path: Path) -> None:
    tally, by_base = Tally(), dict[str, int]()
    for number, (name, base) in enumerate(BASES.items()):
        before = tally.adapters
        run(World(tmp_path / str(number), base), SOAK_EXAMPLES_EACH, tally)
        by_base[name] = tally.adapters - before
    keep_result("oracle", {"peft": peft_version(), "bases": by_base, **tally.to_dict()})
    assert tally.adapters > SOAK_EXAMPLES_EACH * len(BASES)
