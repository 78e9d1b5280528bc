"""Zeros that cost nothing, and ranges that are zero again, byte for byte and OS page for OS page."""

import gc
import mmap
import re
import weakref
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lorry.errors import InvalidRequest
from lorry.layers import memory_map
from lorry.layers.memory_map import OS_PAGE, ZeroMap, runs_with_idle_neighbours
from tests.support.resident import linux_only, resident, resident_bytes

PAGES, WORDS = 6, OS_PAGE // 4
SIZE = PAGES * OS_PAGE - 100  # the last OS page is not full


@linux_only
def test_nothing_is_physical_before_it_is_written() -> None:
    zeros = ZeroMap((64, WORDS))
    assert resident_bytes(zeros.tensor) == 0
    zeros.tensor[7, 5] = 1.0
    assert resident_bytes(zeros.tensor) == OS_PAGE
    assert float(zeros.tensor.sum()) == 1.0


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this kernel has no transparent huge pages"
)
def test_huge_pages_are_off_whatever_the_system_prefers() -> None:
    """With them one token's keys would make two megabytes physical in every layer."""
    tensor = ZeroMap((1024, WORDS)).tensor
    address = tensor.data_ptr()
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        mapping = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if mapping:
            inside = int(mapping[1], 16) <= address < int(mapping[2], 16)
        elif inside and line.startswith("VmFlags:"):
            assert "nh" in line.split()
            return
    raise AssertionError("the mapping is not in smaps")


def test_a_view_keeps_the_mapping_alive() -> None:
    zeros = ZeroMap((4, WORDS))
    gone = weakref.ref(zeros)
    view = zeros.tensor[2]
    view.fill_(3.0)
    del zeros
    gc.collect()
    assert gone() is None
    assert float(view.sum()) == 3.0 * WORDS


@linux_only
@settings(max_examples=300)
@given(st.data())
def test_a_zeroed_range_is_zero_and_its_whole_pages_are_given_back(data: st.DataObject) -> None:
    zeros = ZeroMap((SIZE // 4,))
    words = st.integers(0, SIZE // 4)
    start, stop = sorted((data.draw(words), data.draw(words)))
    low, high = data.draw(st.integers(0, start)), data.draw(st.integers(stop, SIZE // 4))
    zeros.tensor.fill_(1.0)
    spare = data.draw(st.booleans())
    zeros.zero(start * 4, stop * 4, (low * 4, high * 4) if spare else None)
    physical = resident(zeros.tensor)
    ones = zeros.tensor != 0
    assert not ones[start:stop].any()
    outer_low, outer_high = (low, high) if spare else (start, stop)
    assert ones[:outer_low].all()
    assert ones[outer_high:].all()
    for page, present in enumerate(physical):
        first, last = page * WORDS, min((page + 1) * WORDS, SIZE // 4)
        wholly_spare = outer_low <= first and last <= outer_high
        if start < stop and wholly_spare and first < stop and last > start:
            assert not present, f"OS page {page}"
        elif not wholly_spare:
            assert present, f"OS page {page}"


def test_where_the_system_keeps_the_bytes_they_are_zeroed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_map, "_GIVES_BACK", False)
    zeros = ZeroMap((4, WORDS))
    zeros.tensor.fill_(1.0)
    zeros.zero(OS_PAGE - 4, 3 * OS_PAGE + 4)
    assert torch.nonzero(zeros.tensor.flatten() == 0).flatten().tolist() == list(range(WORDS - 1, 3 * WORDS + 1))


@linux_only
def test_memory_that_the_system_will_not_take_is_zeroed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Locked memory, say; here an advice that no kernel knows."""
    zeros = ZeroMap((4, WORDS))
    zeros.tensor.fill_(1.0)
    monkeypatch.setattr(mmap, "MADV_DONTNEED", 12345)
    for _ in range(2):
        zeros.zero(0, 4 * OS_PAGE)
    assert not zeros.tensor.any()
    assert [record.message for record in caplog.records] == [
        "the system keeps idle device memory: [Errno 22] Invalid argument"
    ]


def test_a_range_that_the_system_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"memory.budget_bytes: the system gives no address range of .* bytes"):
        ZeroMap((1 << 58,))


@given(st.sets(st.integers(0, 19)), st.sets(st.integers(0, 19)), st.integers(0, 4))
def test_runs_cover_the_ids_and_reach_no_id_in_use(ids: set[int], used: set[int], reach: int) -> None:
    in_use = [int(piece in used) for piece in range(20)]
    runs = list(runs_with_idle_neighbours(ids, in_use, reach))
    assert [piece for (first, stop), _ in runs for piece in range(first, stop)] == sorted(ids)
    for (first, stop), (low, high) in runs:
        assert first - reach <= low <= first
        assert stop <= high <= stop + reach
        added = {*range(low, first), *range(stop, high)}
        assert not added & used
        assert low in (0, first - reach) or in_use[low - 1]
        assert high in (20, stop + reach) or in_use[high]
