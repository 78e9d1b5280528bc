"""Multi-LoRA kernels against the loop in float64, over a pairwise covering array of what an expert would ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch

from lorry_kernels.tuning.rows import Phase
from tests.kernels.lora_site import CPU, close, site
from tests.kernels.pairwise import Case, pairwise

POOLS: dict[str, tuple[int, tuple[int, ...]]] = {
    "to 16": (1, (16, 1, 0, 15, 3, 8, 2)),
    "to 64": (4, (64, 17, 0, 16, 24, 3)),
    "to 256": (16, (128, 1, 256, 0, 17)),
}
"""Blocks of the tables, and ranks that go round slots and slices; 0: the module is absent."""

VALUES: dict[str, Sequence[Any]] = {
    "k": (16, 48, 64, 576, 1000, 1536, 4096, 11008, 14336),
    "widths": ((16,), (48, 16), (64,), (576, 192, 192), (1000, 30), (1536, 1536), (4096,), (11008,), (14336, 16)),
    "tokens": (0, 1, 15, 16, 17, 33, 255, 256, 1000),
    "mix": ("base", "one each", "shared", "interleaved", "skewed"),
    "pool": tuple(POOLS),
    "dtype": (torch.float16, torch.float32),
    "phase": ("decode", "prefill"),
    "scale": (0.5, -2.0, 0.0),
    "extras": ("none", "gain", "bias", "addend", "all"),
    "sliced": (False, True),
    "shared": (False, True),
    "size": (1.0, 100.0),
    "wide": (False, True),
}


def allowed(case: Case) -> bool:
    """K or N over 1536 only with at most 17 tokens, and many tokens only over few tiles: the interpreter is slow."""
    tokens, widest = case.get("tokens", 0), max(case.get("widths", (0,)))
    many_chunks = case.get("pool") == "to 256" or case.get("mix") == "one each"
    if max(case.get("k", 0), widest) > 1536 and tokens > (1 if many_chunks else 17):
        return False
    if many_chunks and max(case.get("k", 0), widest) > 64 and tokens > 17:
        return False
    if tokens > 33 and (many_chunks or widest > 64 or case.get("k", 0) > 64):
        return False
    return tokens < 1000 or (case.get("phase") == "prefill" and case.get("mix") == "interleaved")


def slots_of(mix: str, tokens: int) -> tuple[list[int], int]:
    """A slot a token, and how many slots there are: more than are used."""
    if mix == "base":
        return [-1] * tokens, 3
    if mix == "one each":
        return list(range(tokens)), tokens + 2
    if mix == "shared":
        return [1] * tokens, 3
    if mix == "interleaved":
        return [(token * 7) % 6 - 1 for token in range(tokens)], 6
    return ([0, 1, 2] + [3] * tokens)[:tokens], 5


def check(case: Case) -> None:
    dtype, phase = case["dtype"], case["phase"]
    slots, count = slots_of(case["mix"], case["tokens"])
    blocks, ranks = POOLS[case["pool"]]
    made = site(
        case["k"],
        case["widths"],
        count,
        blocks,
        lambda slot, s: ranks[(slot + 2 * s) % len(ranks)],
        dtype,
        scale=case["scale"],
        shared=case["shared"],
        extras=case["extras"],
    )
    x, y = made.batch(case["tokens"], sliced=case["sliced"], size=case["size"], wide=case["wide"])
    before = y.clone()
    want = made.reference(slots, x, y)
    block_n = 4096 if max(case["widths"]) > 576 else None
    got = made.run(phase, slots, x, y, block_n=block_n)
    close(got, want, dtype)
    for token, slot in enumerate(slots):
        if slot < 0:
            assert torch.equal(got[token], before[token]), f"token {token} is the base's and was touched"


def name(case: Case) -> str:
    return "-".join(str(value).removeprefix("torch.").replace(" ", "") for value in case.values())


def cases(names: Sequence[str]) -> list[Case]:
    """Every pair of values of the ``names``; of the others each takes the value that was taken least."""
    made = pairwise({key: VALUES[key] for key in names}, allowed)
    taken: Counter[tuple[str, str]] = Counter()
    for case in made:
        for other in [key for key in ("tokens", "widths", "k") if key not in names]:
            fitting = [value for value in VALUES[other] if allowed({**case, other: value})]
            case[other] = min(fitting, key=lambda value: taken[other, repr(value)])
            taken[other, repr(case[other])] += 1
    return [{key: case[key] for key in VALUES} for case in made]


SMALL = ("mix", "pool", "dtype", "phase", "scale", "extras", "sliced", "shared", "size", "wide")
"""Pairs of these, each k, width and number of tokens several times; all pairs are in the soak."""


def long_cases() -> Iterator[Case]:
    rest = {"k": 64, "pool": "to 64", "scale": 0.5, "extras": "all", "sliced": True, "shared": False, "size": 1.0}
    rest |= {"wide": False}
    for tokens, mix, phase in (
        (255, "skewed", "decode"),
        (256, "interleaved", "decode"),
        (256, "shared", "prefill"),
        (1000, "interleaved", "prefill"),
    ):
        case = {**rest, "widths": (64,), "tokens": tokens, "mix": mix, "dtype": torch.float32, "phase": phase}
        yield {key: case[key] for key in VALUES}


@pytest.mark.parametrize("case", [*cases(SMALL), *long_cases()], ids=name)
def test_pairs(case: Case) -> None:
    check(case)


@pytest.mark.soak
@pytest.mark.parametrize("case", cases(tuple(VALUES)), ids=name)
def test_every_pair(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_ranks_of_all_kinds_in_one_batch(phase: Phase) -> None:
    ranks = (1, 2, 3, 8, 15, 16, 17, 24, 64, 128, 256)
    made = site(64, (48, 16), len(ranks), 16, lambda slot, s: ranks[(slot + 5 * s) % len(ranks)], torch.float32)
    slots = [slot for slot in range(len(ranks)) for _ in range(2)]
    x, y = made.batch(len(slots))
    want = made.reference(slots, x, y)
    close(made.run(phase, slots, x, y), want, torch.float32)


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_no_plane_is_written_beyond_a_slices_own_chunks(phase: Phase) -> None:
    """Three chunks make a group of four: what the fourth would store is the next token's first one, whose tile may be
    done by then."""
    made = site(64, (48, 16, 16), 5, 1, lambda slot, s: 16, torch.float32)
    assert made.lora(phase).shrink.tiles.chunks == 4
    slots = list(range(5))
    x, y = made.batch(5)
    want = made.reference(slots, x, y)
    close(made.run(phase, slots, x, y), want, torch.float32)


def test_an_adapter_with_gain_and_no_lora_here() -> None:
    made = site(64, (64, 32), 3, 1, lambda slot, s: 0, torch.float32, extras="all")
    slots = [0, 1, -1, 2]
    x, y = made.batch(4)
    want = made.reference(slots, x, y)
    assert not torch.equal(want[0], y[0].double())
    close(made.run("decode", slots, x, y), want, torch.float32)


@pytest.mark.parametrize("extras", ["none", "all"])
def test_logits_in_float32_are_not_rounded_to_the_adapters_type(extras: str) -> None:
    """Some are 300 and more, where float16 has no quarters."""
    made = site(64, (80,), 4, 2, lambda slot, s: 20, torch.float16, extras=extras)
    slots = [0, 3, -1, 1, 0]
    x, y = made.batch(len(slots), wide=True)
    y += 300.0
    before, want = y.clone(), made.reference(slots, x, y)
    made.run("decode", slots, x, y)
    assert y.dtype == torch.float32
    assert torch.equal(y[2], before[2])
    changed = [row for row, slot in enumerate(slots) if slot >= 0]
    error = float((y.double() - want)[changed].abs().max())
    rounded = float((want.half().double() - want)[changed].abs().max())
    assert error < 4e-3
    assert rounded > 10 * error or rounded > 0.05, "float16 would do here"


def test_nothing_is_launched_without_a_routing(monkeypatch: pytest.MonkeyPatch) -> None:
    made = site(64, (64,), 2, 1, lambda slot, s: 16, torch.float32)
    x, y = made.batch(3)
    before = y.clone()
    for op in ("shrink", "expand"):
        monkeypatch.setattr(f"lorry_kernels.ops.lora.{op}", lambda *_: pytest.fail("was launched"))
    lora = made.lora("decode")
    lora(y, x, made.arena, made.tables, None, lora.planes(3, CPU))
    assert torch.equal(y, before)


def test_every_value_is_in_a_case() -> None:
    for key, values in VALUES.items():
        assert {repr(case[key]) for case in (*cases(SMALL), *long_cases())} == {repr(value) for value in values}, key
