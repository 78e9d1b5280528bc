"""Every kind of adapter on every family: the logits of PEFT, alone and with all the others in one batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from lorry.adapters.config.fields import FIELDS, PeftType
from tests.oracle.worlds import BASES, LARGER_IDS, MOVED, WITHIN, World
from tests.support.kinds import BIAS_KINDS, HEAD_NORM_KINDS, LAYER_KINDS, VOCABULARY_KINDS
from tests.support.zoo import Dtype, Kind

FIND = Callable[[str], World]
BOTH_WAYS = ("llama", "mistral")
"""A tied and an untied base, on which every kind that touches embedding or head is tried."""
ELSEWHERE = ("dora both", "head, embedding and norms", "tied: lora embedding", "tokens", "ia3 head", "lora both")
"""Of those kinds, what is tried on the other families too."""
WRITTEN_BY_PEFT = {"peft_type", "base_model_name_or_path", "auto_mapping"}
"""Fields that PEFT fills in itself; auto_mapping where there is no task."""
SMALL = ("llama", "mistral", "qwen2", "qwen3", "llama, biases")


def kinds_on(base: str) -> dict[str, Kind]:
    """What ``make test`` tries on a base; ``make soak`` tries everything on every base."""
    if base == "llama, biases":
        return {name: LAYER_KINDS[name] for name in BIAS_KINDS}
    vocabulary = VOCABULARY_KINDS if base in BOTH_WAYS else {name: VOCABULARY_KINDS[name] for name in ELSEWHERE}
    return {**LAYER_KINDS, **(HEAD_NORM_KINDS if base == "qwen3" else {}), **vocabulary}


def everything_on(base: str) -> dict[str, Kind]:
    return {**LAYER_KINDS, **(HEAD_NORM_KINDS if "qwen3" in base else {}), **VOCABULARY_KINDS}


def check_alone(world: World, name: str, kind: Kind) -> None:
    made = world.made(name, kind)
    ids = made.ids
    if ids != LARGER_IDS:
        assert float((made.logits - world.base_logits()).abs().max()) > MOVED, "too near to the base to show anything"
    loaded = world.bench.load(made.folder)
    script = world.script(made, loaded)
    world.bench.run(script)
    world.bench.unload(loaded)
    assert world.differs(script, made.logits) < WITHIN


def check_together(world: World, kinds: dict[str, Kind]) -> None:
    """Sequences join one after another, so that a step has rows of every kind that prefill, go on with a prefill and
    decode; rows of the base are among them, and each adapter has two sequences."""
    found = {name: world.made(name, kind) for name, kind in kinds.items()}
    loaded = {name: world.bench.load(made.folder) for name, made in found.items()}
    scripts = {
        (name, turn): world.script(found[name], loaded[name], (number * 5 + turn * 3) % 11, scores=turn == 0)
        for turn in range(2)
        for number, name in enumerate(kinds)
    }
    base = [world.script(None, None, at) for at in (0, 4, 7)]
    order = list(scripts.values())
    widths = world.bench.run(base[0], *order[::2], base[1], *order[1::2], base[2])
    world.bench.unload(*loaded.values())
    assert max(widths) > len(order) / 2, "they must meet in a step"
    wrong = {
        key: difference
        for key, script in scripts.items()
        if not (difference := world.differs(script, found[key[0]].logits)) < WITHIN
    }
    assert wrong == {}
    for script in base:
        assert world.differs(script, world.base_logits()) < WITHIN, "the base's own rows"


def check_everything(world: World, kinds: dict[str, Kind]) -> None:
    """Each alone, all that are wrong named together, and then all in one batch."""
    failed = dict[str, str]()
    for name, kind in kinds.items():
        try:
            check_alone(world, name, kind)
        except AssertionError as error:
            failed[name] = str(error)
    assert failed == {}
    check_together(world, kinds)


@pytest.mark.parametrize("peft_type", FIELDS)
def test_every_served_field_has_a_kind(peft_type: PeftType) -> None:
    served = {name for name, rule in FIELDS[peft_type].items() if rule.treatment == "served"}
    kinds = {**LAYER_KINDS, **HEAD_NORM_KINDS, **VOCABULARY_KINDS}.values()
    tried = {name for kind in kinds if kind.ia3 == (peft_type == "IA3") for name in kind.config}
    assert served - tried == WRITTEN_BY_PEFT


@pytest.mark.parametrize(("base", "name"), [(base, name) for base in SMALL for name in kinds_on(base)])
def test_alone(world_of: FIND, base: str, name: str) -> None:
    check_alone(world_of(base), name, kinds_on(base)[name])


@pytest.mark.parametrize("base", ["llama, float32", "mistral, float32"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["lora both", "dora both", "ia3 head", "tied: lora embedding"])
def test_rounded_copies_of_a_float32_base(world_of: FIND, base: str, dtype: Dtype, name: str) -> None:
    """PEFT loads them over the base, into both places where it is tied."""
    check_alone(world_of(base), f"{name} {dtype}", replace(VOCABULARY_KINDS[name], dtype=dtype))


@pytest.mark.parametrize("base", SMALL)
def test_all_in_one_batch(world_of: FIND, base: str) -> None:
    check_together(world_of(base), kinds_on(base))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("base", BASES)
def test_everything_everywhere(world_of: FIND, base: str) -> None:
    check_everything(world_of(base), everything_on(base))
