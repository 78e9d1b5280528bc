"""Adapters with a text side of their own in the host tier: loaded with them, shared, counted, dropped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lorry.adapters.manifest import AdapterRef
from lorry.adapters.tiers import BaseFiles
from lorry.errors import AdapterLoadFailed
from lorry.residency.host import Ready
from lorry.text import Tokenizer
from tests.unit.adapters import craft
from tests.unit.adapters.tier_world import CountingStore, Tier, World, image_bytes
from tests.unit.text import bases


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return bases.write_base(tmp_path / "base", bases.byte_level())


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, CountingStore(tmp_path / "store"))


class TextTier(Tier):
    """With a base that versions lay their files over, and as many rows as its tokenizer has ids."""

    def __init__(self, world: World, base: Path, budget: int = 1 << 30) -> None:
        super().__init__(world, budget)
        self._base = BaseFiles(base, Tokenizer.load(base))
        self._spec = replace(craft.SPEC, vocabulary=self._base.tokenizer.vocabulary)


@pytest.fixture
def tier(world: World, base: Path) -> Iterator[TextTier]:
    made = TextTier(world, base)
    yield made
    made.check_integrity()
    made.close()


def with_template(world: World, seed: int, template: str) -> AdapterRef:
    def add(folder: Path) -> None:
        (folder / "chat_template.jinja").write_text(template)

    return world.upload(seed, change=add)


def test_it_comes_with_the_image_and_goes_with_it(world: World, tier: TextTier, base: Path) -> None:
    plain, own = world.upload(1), with_template(world, 2, "own")
    for ref in (plain, own):
        assert isinstance(tier.settle(ref), Ready)
    assert tier.text(plain.key) is None
    text = tier.text(own.key)
    assert text is not None
    assert text.render_chat([]) == "own"
    assert text.sha256 == Tokenizer.load(base, world.root / "made-2-4").sha256
    held = tier.state()["host_bytes"]
    tier.discard(own.key)
    assert held - tier.state()["host_bytes"] == image_bytes(world, plain) + text.nbytes
    with pytest.raises(AdapterLoadFailed, match="not in host memory"):
        tier.text(own.key)


def test_equal_text_sides_are_one_object_and_count_once(world: World, tier: TextTier) -> None:
    refs = [with_template(world, seed, "the same") for seed in (1, 2, 3)]
    for ref in refs:
        tier.settle(ref)
    texts = [tier.text(ref.key) for ref in refs]
    assert texts[0] is not None
    assert texts[0] is texts[1] is texts[2]
    one = tier.image(refs[0].key).nbytes
    assert tier.state()["host_bytes"] == 3 * one + texts[0].nbytes
    tier.discard(refs[0].key)
    assert tier.state()["host_bytes"] == 2 * one + texts[0].nbytes


def test_text_is_in_the_budget(world: World, base: Path) -> None:
    refs = [with_template(world, seed, f"{{# {'x' * 100_000} #}}{seed}") for seed in (1, 2)]
    image = image_bytes(world, world.upload(9))
    text = Tokenizer.load(base, world.root / "made-1-4")
    one = image + text.nbytes
    tier = TextTier(world, base, budget=2 * one - 1)
    for ref in refs:
        tier.settle(ref)
    assert tier.state()["host"] == [refs[1].key], "two images would fit, their texts do not"
    tier.retain(refs[1].key)
    tier.check_integrity()
    tier.close()
    short = TextTier(world, base, budget=one - 1)
    assert "larger than host memory" in str(short.failure(refs[0]))
    short.close()


def test_files_as_the_bases_bring_nothing(world: World, tier: TextTier, base: Path) -> None:
    def add(folder: Path) -> None:
        content = json.loads((base / "tokenizer.json").read_text())
        (folder / "tokenizer.json").write_text(json.dumps(content, indent=1))

    ref = world.upload(1, change=add)
    tier.settle(ref)
    assert tier.text(ref.key) is None


def test_without_the_bases_files_such_a_version_is_refused(world: World) -> None:
    ref = with_template(world, 1, "own")
    tier = Tier(world)
    assert "chat_template.jinja" in str(tier.failure(ref))
    tier.close()
