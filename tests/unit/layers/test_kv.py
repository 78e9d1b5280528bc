"""Keys and values lie where they were put; a page is zero when it is taken and nothing when it is given back."""

import json
from pathlib import Path

import pytest
import torch

from lorry.ids import PageId
from lorry.layers.kv import KVView
from lorry.layers.memory_map import OS_PAGE
from lorry.layers.spec import DecoderSpec
from tests.support.resident import linux_only, resident_bytes
from tests.support.tiny_base import tiny_config


def spec_of(**changes: object) -> DecoderSpec:
    return DecoderSpec.from_config(json.loads(tiny_config(**changes).to_json_string(use_diff=False)))


@pytest.fixture
def kv() -> KVView:
    """2 layers, 2 heads of 16: a page of 16 tokens is two OS pages."""
    return KVView.allocate(spec_of(), 8, 16)


def fill(kv: KVView, *pages: int) -> None:
    kv.clear([PageId(page) for page in pages])
    for page in pages:
        kv.arena[page] = float(page + 1)


def test_what_is_written_is_read_and_nothing_else_is_touched(kv: KVView) -> None:
    generator = torch.Generator().manual_seed(0)
    table = [PageId(5), PageId(0), PageId(7)]
    kv.clear(table)
    keys, values = (torch.randn(2, 40, 2, 16, generator=generator) for _ in range(2))
    index = kv.write_index([table[p // 16] for p in range(40)], [p % 16 for p in range(40)])
    for layer in range(2):
        kv.write(layer, index, keys[layer], values[layer])
    for layer in range(2):
        read = kv.read(layer, torch.tensor(table), 40)
        assert torch.equal(read[0], keys[layer])
        assert torch.equal(read[1], values[layer])
        in_place = kv.layer(layer)
        assert torch.equal(in_place[0][0, :, 3], keys[layer, 16 + 3])
        assert torch.equal(in_place[1][7, :, 7], values[layer, 32 + 7])
    assert int((kv.arena != 0).sum()) == 2 * 2 * 40 * 2 * 16


def test_the_scratch_page_is_written_like_any_other(kv: KVView) -> None:
    kv.write(1, kv.write_index([kv.scratch], [3]), torch.ones(1, 2, 16), torch.ones(1, 2, 16))
    assert not kv.arena[:8].any()
    assert kv.arena[8].any()


def test_a_page_is_zero_when_it_is_taken_again(kv: KVView) -> None:
    fill(kv, 2, 3)
    kv.arena[3] = float("nan")
    kv.clear([PageId(3)])
    assert not kv.arena[3].any()
    assert bool((kv.arena[2] == 3.0).all())


@linux_only
def test_taking_a_page_makes_nothing_physical(kv: KVView) -> None:
    kv.clear([PageId(page) for page in range(8)])
    assert resident_bytes(kv.arena) == 0
    kv.write(0, kv.write_index([4], [0]), torch.ones(1, 2, 16), torch.ones(1, 2, 16))
    assert resident_bytes(kv.arena) == 2 * OS_PAGE // 2  # keys and values of one layer: one OS page here


@linux_only
def test_released_pages_are_no_longer_physical_and_read_as_zero(kv: KVView) -> None:
    size = kv.arena[0].numel() * 4
    assert size == 2 * OS_PAGE
    fill(kv, *range(8))
    kv.release([PageId(6), PageId(1), PageId(2)])
    assert resident_bytes(kv.arena) == 5 * size
    for page in range(8):
        assert bool((kv.arena[page] == (0.0 if page in (1, 2, 6) else page + 1.0)).all())


@linux_only
def test_neighbours_that_share_an_os_page_give_it_back_together() -> None:
    """Pages of 2 tokens are a quarter of an OS page: it stays while one of the four is in use."""
    kv = KVView.allocate(spec_of(), 8, 2)
    assert kv.arena[0].numel() * 4 == OS_PAGE // 4
    fill(kv, *range(8))
    for given, physical in (((1, 3), 2), ((0,), 2), ((5,), 2), ((2,), 1), ((4, 7, 6), 0)):
        kv.release([PageId(page) for page in given])
        assert resident_bytes(kv.arena) == physical * OS_PAGE
    assert not kv.arena.any()


def test_releasing_what_was_never_taken_or_is_gone_already_changes_nothing(kv: KVView) -> None:
    fill(kv, 4)
    kv.release([PageId(3), PageId(5)])
    kv.release([PageId(3)])
    assert bool((kv.arena[4] == 5.0).all())
    kv.release([PageId(4)])
    fill(kv, 4)
    assert bool((kv.arena[4] == 5.0).all())


def test_page_bytes_are_what_a_page_is(kv: KVView, tmp_path: Path) -> None:
    assert KVView.page_bytes(spec_of(), 16) == kv.arena[0].numel() * 4
