"""The tuning table, the search that fills it, and a refresh of toy size in the interpreter under an injected clock."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from lorry_kernels.aot.build import ModelShape
from lorry_kernels.ops.expand import ExpandPlan
from lorry_kernels.ops.launch import Launch
from lorry_kernels.ops.prefill_plan import PrefillPlan
from lorry_kernels.ops.shrink import ShrinkPlan
from lorry_kernels.tuning import (
    AttentionConfig,
    ExpandConfig,
    Row,
    ShrinkConfig,
    lookup,
    rank_bucket,
    refresh,
    table,
    trial,
)
from lorry_kernels.tuning.configs import Config
from lorry_kernels.tuning.rows import choose
from lorry_kernels.tuning.sweep import Task, neighbours, sweep
from lorry_kernels.tuning.workloads import Size, attention_tasks, lora_tasks

CPU = torch.device("cpu")


# The table.


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "gfx942"])
def test_every_shipped_card_has_every_op(arch: str) -> None:
    for k, rank in itertools.product((64, 576, 4096, 28672), (1, 16, 17, 256, 768)):
        assert lookup(arch, "shrink", k, 0, rank, "decode").split >= 8
        assert lookup(arch, "shrink", k, 0, rank, "prefill").split == 1
        assert lookup(arch, "expand", 0, k, rank, "decode").block_n >= 128
        assert lookup(arch, "expand", 0, k, rank, "prefill").block_n >= 64
    assert lookup(arch, "shrink", 4096, 0, 16, "decode").chunks == 1
    for dim in (64, 80, 96, 128, 192, 256):
        assert lookup(arch, "attention", dim, 0, 0, "decode").rows == 16
        assert lookup(arch, "attention", dim, 0, 0, "prefill").rows in (64, 128)


def test_a_card_without_a_row_is_refused() -> None:
    with pytest.raises(ValueError, match="shrink decode on tpu"):
        lookup("tpu", "shrink", 4096, 0, 16, "decode")
    with pytest.raises(ValueError, match="rank: is -1"):
        lookup("sm_90", "shrink", 4096, 0, -1, "decode")


def row(arch: str, rank: int, k: int | None, n: int | None, block_k: int) -> Row:
    return Row(arch, "shrink", "decode", rank, k, n, ShrinkConfig(block_k, 1, 1))


def test_the_narrowest_row_that_fits_is_taken() -> None:
    rows = (
        row("sm", 256, None, None, 1),
        row("sm_90", 256, None, None, 2),
        row("sm_90", 256, 8192, None, 3),
        row("sm_90", 256, 4096, None, 4),
        row("sm_90", 16, 4096, None, 5),
        row("sm_90", 16, 4096, 100, 6),
    )

    def chosen(arch: str, k: int, n: int, rank: int) -> int:
        found = choose(rows, arch, "shrink", k, n, rank, "decode")
        assert found is not None
        assert isinstance(found.config, ShrinkConfig)
        return found.config.block_k

    assert chosen("sm_80", 4096, 50, 16) == 1
    assert chosen("sm_90", 9000, 50, 16) == 2
    assert chosen("sm_90", 4097, 50, 16) == 3
    assert chosen("sm_90", 4096, 50, 17) == 4
    assert chosen("sm_90", 4096, 101, 16) == 5
    assert chosen("sm_90", 4096, 100, 16) == 6
    assert choose(rows, "sm_90", "shrink", 4096, 50, 16, "prefill") is None
    assert choose(rows, "sm_90", "shrink", 4096, 50, 257, "decode") is None


def test_what_was_measured_goes_before_the_defaults_but_not_in_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = row("sm_90", 1024, None, None, 32)
    monkeypatch.setattr(table, "measured", lambda: (fast, replace(fast, arch="interpreter")))
    table._lookup.cache_clear()
    try:
        assert lookup("sm_90", "shrink", 4096, 0, 16, "decode") == fast.config
        assert lookup("sm_80", "shrink", 4096, 0, 16, "decode") != fast.config
        assert lookup("interpreter", "shrink", 4096, 0, 16, "decode") != fast.config
    finally:
        table._lookup.cache_clear()


def test_a_trial_holds_within_it_alone() -> None:
    pinned = ShrinkConfig(64, 2, 2)
    before = lookup("sm_90", "shrink", 4096, 0, 16, "decode")
    with trial("shrink", pinned):
        assert lookup("sm_90", "shrink", 4096, 0, 16, "decode") == pinned
        assert isinstance(lookup("sm_90", "expand", 0, 4096, 16, "decode"), ExpandConfig)
    assert lookup("sm_90", "shrink", 4096, 0, 16, "decode") == before
    with pytest.raises(ValueError, match="rank"), trial("shrink", pinned):
        rank_bucket(0)
    assert lookup("sm_90", "shrink", 4096, 0, 16, "decode") == before


def test_the_file_holds_rows_as_they_are() -> None:
    limited = ShrinkConfig(64, 1, 1, Launch(8, 2, 128), 3)
    rows = (replace(row("sm_90", 16, 4096, None, 64), config=limited), row("gfx942", 256, None, 7, 32))
    assert table.read(table.write(rows)) == tuple(sorted(rows, key=lambda one: one.arch))
    assert table.read(table.write(())) == ()
    assert table.read(table.write(table.measured())) == table.measured()


@pytest.mark.parametrize(
    ("old", "new"),
    [('"shrink"', '"shrunk"'), ('"block_k": 64', '"block_k": 0'), ('"split"', '"parts"'), ('"rank": 16', '"rank": 20')],
)
def test_a_bad_row_is_named(old: str, new: str) -> None:
    text = table.write((row("sm_90", 16, 4096, None, 64),))
    assert old in text
    with pytest.raises(ValueError, match=r"rows\[0\]"):
        table.read(text.replace(old, new))


# The search.

STANDING = ShrinkConfig(128, 2, 4, Launch(4, 3), 2)


class Scripted:
    """A trial of the configuration that ``lookup`` gives when it is made; its time is that of ``times``."""

    running: Scripted | None = None

    def __init__(self, wrong: dict[Config, float]) -> None:
        self.config = lookup("sm_90", "shrink", 4096, 0, 16, "decode")
        self._error = wrong.get(self.config, 0.5)

    def run(self) -> None:
        assert lookup("sm_90", "shrink", 4096, 0, 16, "decode") == self.config
        Scripted.running = self

    def error(self) -> float:
        return self._error


def task(wrong: dict[Config, float]) -> Task:
    return Task("shrink", "decode", 16, 4096, None, STANDING, lambda: Scripted(wrong))


def clock_of(times: dict[Config, float], order: list[Config]) -> Callable[[Callable[[], None]], float]:
    def clock(call: Callable[[], None]) -> float:
        call()
        assert Scripted.running is not None
        config: Config = Scripted.running.config
        order.append(config)
        return times.get(config, 100.0)

    return clock


def test_the_fastest_right_one_wins_and_timings_go_around() -> None:
    fast, wrong, unclear = (replace(STANDING, block_k=256), replace(STANDING, split=8), replace(STANDING, chunks=4))
    order: list[Config] = []
    clock = clock_of({fast: 50.0, wrong: 1.0, unclear: 1.0}, order)
    outcome = sweep(task({wrong: 1.5, unclear: math.nan}), clock, rounds=3, passes=1)
    assert outcome.best == fast
    assert outcome.times[fast] == 50.0
    assert set(outcome.rejected) == {wrong, unclear}
    assert "reference" in outcome.rejected[wrong]
    candidates = len(outcome.times)
    assert candidates > 5
    assert order == order[:candidates] * 3
    found = outcome.row(task({}), "sm_90", "a card")
    assert found == Row("sm_90", "shrink", "decode", 16, 4096, None, fast, "a card: 50.0 us, 100.0 us before")


def test_a_second_pass_starts_from_the_first_ones_best() -> None:
    fast, faster = replace(STANDING, block_k=256), replace(STANDING, block_k=512)
    outcome = sweep(task({}), clock_of({fast: 50.0, faster: 20.0}, []), rounds=1)
    assert outcome.best == faster


def test_little_faster_is_not_faster() -> None:
    little = replace(STANDING, block_k=256)
    assert sweep(task({}), clock_of({little: 98.0}, []), rounds=1).best == STANDING


def test_one_slow_timing_does_not_decide() -> None:
    fast = replace(STANDING, block_k=256)
    hiccups = iter([900.0, 50.0, 50.0])

    def clock(call: Callable[[], None]) -> float:
        call()
        assert Scripted.running is not None
        return next(hiccups) if Scripted.running.config == fast else 100.0

    assert sweep(task({}), clock, rounds=3, passes=1).best == fast


def test_what_does_not_compile_is_no_candidate() -> None:
    def prepare() -> Scripted:
        made = Scripted({})
        if made.config.launch.num_warps == 8:
            raise RuntimeError("out of resource: shared memory")
        return made

    outcome = sweep(replace(task({}), prepare=prepare), clock_of({}, []), rounds=1)
    assert outcome.best == STANDING
    assert any("out of resource" in reason for reason in outcome.rejected.values())


def test_a_kernel_that_is_wrong_now_is_not_tuned() -> None:
    with pytest.raises(RuntimeError, match=r"shrink decode K=4096 rank<=16: .* mend the kernel"):
        sweep(task({STANDING: 2.0}), clock_of({}, []), rounds=1)


def test_neighbours_are_one_step_away() -> None:
    for standing in (STANDING, ExpandConfig(128, 4), lookup("sm_90", "attention", 128, 0, 0, "prefill")):
        found = list(neighbours(standing))
        assert standing not in found
        assert len(set(found)) == len(found) > 5
    assert all(config.rows == 16 for config in neighbours(lookup("sm_90", "attention", 128, 0, 0, "decode")))  # type: ignore[union-attr]  # of this op


# A refresh.


def test_no_gpu_no_refresh(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert refresh.main([]) == 2
    assert "no GPU here" in capsys.readouterr().err


def test_kernels_take_what_is_tried() -> None:
    with trial("shrink", ShrinkConfig(64, 2, 2, Launch(8, 5))):
        shrink = ShrinkPlan.of("decode", "sm_90", 4096, 1, 4, torch.bfloat16).tiles
    assert (shrink.block_k, shrink.chunks, shrink.split, shrink.launch) == (64, 2, 2, Launch(8, 5).on("sm_90"))
    with trial("expand", ExpandConfig(32, 2, Launch(8, 5))):
        expand = ExpandPlan.of("decode", "sm_90", [4096], 4, 2, torch.bfloat16, CPU).tiles
    assert (expand.block_n, expand.chunks, expand.launch) == (32, 2, Launch(8, 5).on("sm_90"))
    with trial("attention", AttentionConfig(64, 16)):
        assert PrefillPlan.allocate(64, 1, 8, 4, 64, device=CPU).block_tokens == 32


TOY = ModelShape("toy", 48, 80, 4, 2, 64, 100)
SMALL = Size(decode_rows=2, prefill_rows=17, slots=2, keys=32, checked=2, dtype=torch.float16)


def test_a_refresh_of_toy_size_runs_every_op_against_its_reference() -> None:
    lora = list(lora_tasks(TOY, SMALL, CPU, pools=(2,)))
    tasks = [lora[0], lora[3], *attention_tasks(TOY, SMALL, CPU)]
    names = [(one.op, one.phase) for one in tasks]
    assert names[:2] == [("shrink", "decode"), ("expand", "prefill")]
    assert names[2:] == [("attention", "decode"), ("attention", "prefill")]
    said: list[str] = []
    calls: list[float] = []

    def clock(call: Callable[[], None]) -> float:
        call()
        calls.append(float(len(calls)))
        return 1000.0 - len(calls)  # Later ones are faster: something is always found, and by more than the margin.

    kept = row("sm_80", 16, None, None, 64)
    rows = refresh.refresh([*tasks, tasks[0]], clock, arch="sm_90", card="toy", kept=[kept], rounds=1, say=said.append)
    assert kept in rows
    assert len(said) == len(tasks)
    assert not any("Error" in line for line in said)
    assert table.read(table.write(rows))
    assert len(calls) > 25


def test_a_refresh_ends_in_time_with_what_it_has() -> None:
    said: list[str] = []
    times = iter([0.0, 1.0, 700.0])
    fast = clock_of({replace(STANDING, block_k=256): 1.0}, [])
    tasks = [task({}), replace(task({}), k=64)]
    rows = refresh.refresh(
        tasks, fast, arch="sm_90", card="c", kept=(), seconds=600, now=lambda: next(times), say=said.append
    )
    assert [one.k for one in rows] == [4096]
    assert "600 s are over" in said[-1]
