"""What the multi-LoRA kernels promise bit for bit, and that nobody's bytes reach anybody else's row."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lorry_kernels.ops import launch
from lorry_kernels.ops.lora import LoraTables
from lorry_kernels.tuning.rows import Phase
from tests.kernels.lora_site import CPU, Site, close, site, with_poisoned_slot

PHASES: tuple[Phase, ...] = ("decode", "prefill")
RANKS = (16, 3, 40, 0, 64)
SLOTS = [0, 3, -1, 2, 2, 0, 1, 4, 4, -1, 2, 0, *[1] * 6]


def made(dtype: torch.dtype = torch.float16, extras: str = "all") -> Site:
    return site(1024, (96, 32), 5, 4, lambda slot, s: RANKS[(slot + s) % 5], dtype, extras=extras)


def picked(whole: Tensor, tokens: list[int]) -> Tensor:
    return whole[tokens].clone()


@pytest.mark.parametrize("phase", PHASES)
def test_two_runs_alone_in_any_batch_and_in_any_order(phase: Phase) -> None:
    own = made()
    assert own.lora(phase).shrink.tiles.split == (2 if phase == "decode" else 1)
    x, y = own.batch(len(SLOTS))
    whole = own.run(phase, SLOTS, x, y.clone())
    assert torch.equal(own.run(phase, SLOTS, x, y.clone()), whole)
    order = torch.randperm(len(SLOTS), generator=torch.Generator().manual_seed(3)).tolist()
    shuffled = own.run(phase, [SLOTS[token] for token in order], picked(x, order), picked(y, order))
    assert torch.equal(shuffled, whole[order])
    for tokens in ([3], [17], [0, 2, 7, 8, 14]):
        alone = own.run(phase, [SLOTS[token] for token in tokens], picked(x, tokens), picked(y, tokens))
        assert torch.equal(alone, whole[tokens]), tokens


@pytest.mark.parametrize("phase", PHASES)
def test_whatever_the_number_of_programs(phase: Phase, monkeypatch: pytest.MonkeyPatch) -> None:
    own = made()
    x, y = own.batch(len(SLOTS))
    results = []
    for programs in (1, 200):
        monkeypatch.setattr(launch, "INTERPRETER_PROGRAMS", programs)
        results.append(own.run(phase, SLOTS, x, y.clone()))
    assert torch.equal(results[0], results[1])


def test_a_row_without_vectors_is_the_same_where_others_have_some() -> None:
    own = made()
    assert own.vectors is not None
    plain = [s for s in range(5) if int(own.vectors.gain_offset[s].max()) < 0]
    assert plain
    slots = [plain[0], 0, plain[0], -1]
    x, y = own.batch(4)
    mixed = own.run("decode", slots, x, y.clone())
    without = own.run("decode", slots, x, y.clone(), vectors=False)
    assert torch.equal(mixed[[0, 2, 3]], without[[0, 2, 3]])
    assert not torch.equal(mixed[1], without[1])


def test_wherever_the_adapter_lies() -> None:
    """Another slot, other places in the arena: as after it was evicted and came back."""
    own = made(extras="none")
    x, y = own.batch(6)
    first = own.run("decode", [2] * 6, x, y.clone())
    arena = torch.full((own.arena.numel() * 2,), float("nan"), dtype=own.dtype)
    arena[own.arena.numel() :] = own.arena

    shift, order = own.arena.numel(), [2, 0, 1, 3, 4]
    assert shift % 64 == 0
    a, b, scale = (table[order] for table in parts(own.tables))
    tables = LoraTables(torch.where(a >= 0, a + shift, a), torch.where(b >= 0, b + shift, b), scale)
    moved = replace(own, arena=arena, tables=tables)
    assert torch.equal(moved.run("decode", [0] * 6, x, y.clone()), first)


def test_two_slots_with_equal_weights() -> None:
    own = made(extras="none")
    twin = replace(own, tables=LoraTables(*(table[[2, 2, 2, 2, 2]] for table in parts(own.tables))))
    x, y = own.batch(20)
    one = twin.run("decode", [2] * 20, x, y.clone())
    assert torch.equal(twin.run("decode", [token % 5 for token in range(20)], x, y.clone()), one)


def parts(tables: LoraTables) -> tuple[Tensor, Tensor, Tensor]:
    return tables.a_offset, tables.b_offset, tables.scale


@pytest.mark.parametrize("phase", PHASES)
def test_a_neighbour_full_of_nan_stays_alone(phase: Phase) -> None:
    own = made(extras="none")
    x, y = own.batch(len(SLOTS))
    healthy = own.run(phase, SLOTS, x, y.clone())
    sick = with_poisoned_slot(own, 2).run(phase, SLOTS, x, y.clone())
    for token, slot in enumerate(SLOTS):
        if slot == 2:
            assert sick[token].isnan().any()
        else:
            assert torch.equal(sick[token], healthy[token]), token


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # numpy multiplies for the interpreter
def test_a_row_of_infinities_stays_alone() -> None:
    own = made(extras="none")
    x, y = own.batch(len(SLOTS))
    healthy = own.run("decode", SLOTS, x, y.clone())
    x[3] = float("inf")
    sick = own.run("decode", SLOTS, x, y.clone())
    rest = [token for token in range(len(SLOTS)) if token != 3]
    assert torch.equal(sick[rest], healthy[rest])


def test_a_fault_changes_no_bit_of_its_row_and_nothing_of_others() -> None:
    own = made()
    x, y = own.batch(len(SLOTS))
    healthy = own.run("decode", SLOTS, x, y.clone())
    expected = [int(own.generation[slot]) for slot in SLOTS]
    expected[3] += 1
    routing = own.routing("decode", SLOTS, expected)
    got = own.run("decode", SLOTS, x, y.clone(), routing=routing)
    assert routing.fault.tolist() == [int(token == 3) for token in range(len(SLOTS))]
    assert torch.equal(got[3], y[3])
    rest = [token for token in range(len(SLOTS)) if token != 3]
    assert torch.equal(got[rest], healthy[rest])


def test_replay_after_everything_changed() -> None:
    """Static buffers as in a graph: slots, ranks and offsets change between replays, the launches' arguments do not."""
    own, other = (
        made(torch.float32, "none"),
        site(1024, (96, 32), 5, 4, lambda slot, s: 64 - slot, torch.float32, seed=4),
    )
    size = max(own.arena.numel(), other.arena.numel())
    arena = torch.full((size,), float("nan"))
    tables = LoraTables(*(torch.empty_like(table) for table in parts(own.tables)))
    static = replace(own, arena=arena, tables=tables)
    x, y, planes = torch.empty(8, 1024), torch.empty(8, 128), own.lora("decode").planes(8, CPU)
    lora, routing = own.lora("decode"), own.routing("decode", [-1] * 8)
    for source, slots in ((own, [0, 1, 2, 3, 4, -1, 2, 2]), (other, [4] * 8), (own, [-1] * 8), (own, [1, 0] * 4)):
        arena[: source.arena.numel()] = source.arena
        for target, table in zip(parts(tables), parts(source.tables), strict=True):
            target.copy_(table)
        new_x, new_y = source.batch(8, seed=len(set(slots)))
        x.copy_(new_x)
        y.copy_(new_y)
        want = source.reference(slots, x, y)
        fresh = source.routing("decode", slots)
        for name in ("order", "tile", "tiles", "slot", "fault", "head"):
            getattr(routing, name).copy_(getattr(fresh, name))
        lora(y, x, static.arena, static.tables, routing, planes)
        close(y, want, torch.float32)
