"""Kinds of adapters on the page arena with the Triton kernels: PEFT's logits, alone and with others in one batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.oracle.test_kinds import check_alone, check_everything, check_together, everything_on
from tests.oracle.worlds import BASES, BaseKind, World
from tests.support.kinds import LAYER_KINDS, VOCABULARY_KINDS
from tests.support.paged import PagedBench

FIND = Callable[[str], World]
ON = {
    **{name: BASES[name] for name in ("llama", "mistral", "qwen2")},
    "qwen3": BaseKind("qwen3", False, {"head_dim": 32}),
}
"""The attention kernels want heads of a multiple of 16."""
LEAST = {
    "patterns": LAYER_KINDS["patterns"],
    "dora both": VOCABULARY_KINDS["dora both"],
    "ia3 head": VOCABULARY_KINDS["ia3 head"],
}
"""The interpreter takes seconds for what takes a device microseconds; every kind is in the soak."""


@pytest.fixture(scope="module")
def world_of(tmp_path_factory: pytest.TempPathFactory) -> FIND:
    found: dict[str, World] = {}

    def find(base: str) -> World:
        if base not in found:
            found[base] = World(tmp_path_factory.mktemp("paged"), ON[base], PagedBench)
        return found[base]

    return find


def on(*small: str) -> list[Any]:
    return [name if name in small else pytest.param(name, marks=pytest.mark.soak) for name in ON]


@pytest.mark.parametrize("base", on("llama"))
def test_alone(world_of: FIND, base: str) -> None:
    for name, kind in LEAST.items():
        check_alone(world_of(base), name, kind)


@pytest.mark.parametrize("base", on("qwen2"))
def test_in_one_batch(world_of: FIND, base: str) -> None:
    check_together(world_of(base), LEAST)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("base", ON)
def test_everything(world_of: FIND, base: str) -> None:
    check_everything(world_of(base), everything_on(base))
