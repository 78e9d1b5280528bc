"""Routing on the device: a stable sort by slot, tiles of one slot, faults."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from lorry_kernels.ops.lora_tiles import block_m
from lorry_kernels.ops.routing import Routing, capacity, checked_slots, route
from lorry_kernels.reference import RoutingReference, routing_reference
from lorry_kernels.tuning.rows import Phase
from tests.kernels.pairwise import Case, pairwise

CPU = torch.device("cpu")
FOREIGN = 2**30


def routed(
    phase: Phase, slots: Sequence[int], count: int, expected: Tensor | None = None, generation: Tensor | None = None
) -> Routing:
    made = Routing.allocate(phase, len(slots), count, CPU)
    for buffer in (made.order, made.tile, made.slot, made.fault, made.head):
        buffer.fill_(FOREIGN)
    generation = torch.arange(count, dtype=torch.int64) + 5 if generation is None else generation
    slot = torch.tensor(slots, dtype=torch.int32)
    expected = slot.long() + 5 if expected is None else expected
    route(slot, expected, generation, made)
    return made


def check(made: Routing, want: RoutingReference) -> None:
    """All that the loop says. The order of rows of no adapter too, which nobody reads: it is the same in every run."""
    assert made.order.tolist() == want.order
    assert [tuple(one) for one in made.tile[: int(made.tiles)].tolist()] == want.tiles
    assert made.slot.tolist() == want.slot
    assert made.fault.tolist() == want.fault


def tiles(made: Routing) -> list[tuple[int, list[int]]]:
    return [
        (slot, made.order[start : start + rows].tolist()) for slot, start, rows in made.tile[: int(made.tiles)].tolist()
    ]


def slots_of(mix: str, tokens: int, count: int) -> list[int]:
    if mix == "base":
        return [-1] * tokens
    if mix == "shared":
        return [count - 1] * tokens
    if mix == "interleaved":
        return [(token * 7) % (count + 1) - 1 for token in range(tokens)]
    if mix == "descending":
        return [(tokens - token) % count for token in range(tokens)]
    return ([0, 1 % count, 2 % count] + [count - 1] * tokens)[:tokens]


CASES = pairwise(
    {
        "tokens": (0, 1, 15, 16, 17, 33, 64, 65, 255, 256, 1000),
        "count": (1, 3, 40),
        "mix": ("base", "shared", "interleaved", "descending", "skewed"),
        "phase": ("decode", "prefill"),
        "faults": (False, True),
    },
    lambda case: case.get("tokens") != 1000 or (case.get("mix"), case.get("phase")) == ("interleaved", "decode"),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(str(value) for value in case.values()))
def test_tiles(case: Case) -> None:
    count = case["count"]
    slots = slots_of(case["mix"], case["tokens"], count)
    expected = [slot + 5 for slot in slots]
    if case["faults"]:  # slots filled anew, slots out of range on both sides
        for token in range(0, len(slots), 3):
            expected[token] += 1
        for token in range(1, len(slots), 7):
            slots[token] = (count, -2, count + 40, -(2**31))[token % 4]
    generation = torch.arange(count, dtype=torch.int64) + 5
    made = routed(case["phase"], slots, count, torch.tensor(expected, dtype=torch.int64), generation)
    want = routing_reference(slots, expected, generation.tolist(), block_m(case["phase"]))
    check(made, want)
    assert len(want.tiles) <= made.capacity == capacity(case["phase"], len(slots), count)
    assert any(want.fault) == (case["faults"] and any(slot != -1 for slot in slots))


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_capacity_is_reached_and_never_passed(phase: Phase) -> None:
    rows = block_m(phase)
    # Every slot one row more than whole tiles: the most tiles that so many rows can have.
    slots = [slot for slot in range(3) for _ in range(rows + 1)]
    want = routing_reference(slots, [slot + 5 for slot in slots], [5, 6, 7], rows)
    assert len(want.tiles) == 6 == capacity(phase, len(slots), 3)
    check(routed(phase, slots, 3), want)


def test_another_generation_is_a_fault_and_gets_no_tile() -> None:
    slots = [0, 1, -1, 0, 1]
    expected = torch.tensor([5, 6, 99, 5, 7])
    made = routed("decode", slots, 2, expected)
    assert made.fault.tolist() == [0, 0, 0, 0, 1]
    assert made.slot.tolist() == [0, 1, -1, 0, -1]
    assert tiles(made) == [(0, [0, 3]), (1, [1])]


def test_a_slot_that_was_filled_anew_runs_nothing_for_those_who_named_the_old_one() -> None:
    generation = torch.tensor([4, 9])
    slots, expected = [1, 1, 0], torch.tensor([8, 8, 4])
    made = routed("decode", slots, 2, expected, generation)
    assert made.fault.tolist() == [1, 1, 0]
    assert tiles(made) == [(0, [2])]


def test_a_slot_out_of_range_is_a_fault_on_the_device() -> None:
    """Also where memory behind the generations holds the one that was expected."""
    generation = torch.tensor([5, 6, 5])[:2]
    made = routed("decode", [2, -2, 0, 2**31 - 1, -(2**31)], 2, torch.full((5,), 5), generation)
    assert made.fault.tolist() == [1, 1, 0, 1, 1]
    assert made.slot.tolist() == [-1, -1, 0, -1, -1]
    assert tiles(made) == [(0, [2])]


def test_buffers_are_used_again() -> None:
    made = routed("decode", [0, 0, 1, -1], 2)
    route(torch.tensor([-1] * 4, dtype=torch.int32), torch.zeros(4, dtype=torch.int64), torch.tensor([5, 6]), made)
    assert int(made.tiles) == 0
    assert made.slot.tolist() == [-1] * 4


def test_slots_in_a_list_are_checked_by_place() -> None:
    assert checked_slots([0, -1, 2], 3).dtype == torch.int32
    for slots, place in (([0, 3], 1), ([-2], 0)):
        with pytest.raises(ValueError, match=rf"^slots: slots\[{place}\] is {slots[place]}, must be in \[-1, 3\)"):
            checked_slots(slots, 3)


@pytest.mark.parametrize(
    ("argument", "value", "error"),
    [
        ("slot", torch.zeros(3, dtype=torch.int64), TypeError),
        ("slot", torch.zeros(4, dtype=torch.int32), ValueError),
        ("slot", torch.zeros(6, dtype=torch.int32)[::2], ValueError),
        ("slot", [0, 1, 2], TypeError),
        ("expected", torch.zeros(3, dtype=torch.int32), TypeError),
        ("expected", torch.zeros(3, 1, dtype=torch.int64), ValueError),
        ("generation", torch.zeros(3, dtype=torch.int64), ValueError),
        ("generation", torch.zeros(2), TypeError),
        ("generation", torch.zeros(2, dtype=torch.int64, device="meta"), TypeError),
    ],
)
def test_bad_calls(argument: str, value: object, error: type[Exception]) -> None:
    made = Routing.allocate("decode", 3, 2, CPU)
    made.order.fill_(FOREIGN)
    good = {
        "slot": torch.zeros(3, dtype=torch.int32),
        "expected": torch.zeros(3, dtype=torch.int64),
        "generation": torch.zeros(2, dtype=torch.int64),
    }
    with pytest.raises(error, match=f"^{argument}: "):
        route(**{**good, argument: value}, routing=made)  # type: ignore[arg-type]  # by name, on purpose
    assert (made.order == FOREIGN).all(), "was launched"
