"""`lorry serve --device cuda`: settings from what card and machine have, and a plain word where there is no card."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lorry.cli.app import build_parser
from lorry.cli.homes import Home
from lorry.cli.platform import Settings
from lorry.cli.serve import settings_of
from lorry.config import MemoryConfig, RestartConfig, SchedulerConfig, machine_memory
from lorry.engine.gpu.card import Card, look
from lorry.engine.gpu.settings import MOST_TOKENS, CardSettings, derive_for_card
from lorry.engine.settings import ModelNumbers
from lorry.errors import FailedPrecondition, InvalidRequest
from tests.support.tracers import write_tracer_base

GIB = 1 << 30
LLAMA_8B = ModelNumbers(
    parameters=8_030_000_000, kv_elements_per_token=65_536, lora_row_elements=2_621_440, context_tokens=8192
)
H200 = Card("NVIDIA H200", 140 * GIB, 139 * GIB)
AUTO = MemoryConfig(budget_bytes=0)


def derived(card: Card = H200, machine: int = 1024 * GIB, memory: MemoryConfig = AUTO, **given: int) -> CardSettings:
    return derive_for_card(LLAMA_8B, memory, card, 16, machine, 2048, "bfloat16", given)


def values(found: CardSettings) -> dict[str, int]:
    return {choice.name: choice.value for choice in found.choices}


def test_a_large_card() -> None:
    found = derived()
    room = int(139 * GIB * 0.85) - 16_060_000_000
    assert values(found) == {
        "memory_budget": 0,
        "max_sequences": 256,
        "token_budget": MOST_TOKENS,
        "prefill_chunk_tokens": MOST_TOKENS,
        "page_tokens": 64,
        "max_rank": 256,
        "threads": 16,
        "max_slots": 256,
        "host_bytes": room,
        "start_s": 622,
    }
    assert str(found) == (
        "settings for NVIDIA H200 (140 GiB): dtype bfloat16, memory_budget auto, max_sequences 256, token_budget 8192, "
        "prefill_chunk_tokens 8192, page_tokens 64, max_rank 256, threads 16, max_slots 256, "
        f"host_bytes {room}, start_s 622"
    )
    assert all(len(choice.why) > 20 for choice in found.choices)


@pytest.mark.parametrize(
    ("gib", "tokens", "fewest", "most"), [(24, 2048, 8, 40), (48, 4096, 150, 256), (80, 8192, 256, 256)]
)
def test_smaller_cards_take_smaller_steps_and_fewer_sequences(gib: int, tokens: int, fewest: int, most: int) -> None:
    found = values(derived(Card("a card", gib * GIB, gib * GIB - (GIB >> 1))))
    assert found["token_budget"] == found["prefill_chunk_tokens"] == tokens
    assert fewest <= found["max_sequences"] == found["max_slots"] <= most
    assert found["start_s"] > RestartConfig().start_s + 300


def test_the_host_is_not_given_more_than_it_has() -> None:
    assert values(derived(machine=64 * GIB))["host_bytes"] == 16 * GIB
    assert values(derived(machine=2 * GIB))["host_bytes"] == GIB
    assert GIB >> 2 < machine_memory() < 1 << 50


def test_what_an_operator_chose_stands_and_the_rest_follows() -> None:
    found = derived(max_sequences=300, token_budget=512, max_slots=7, host_bytes=3 * GIB, start_s=9, max_rank=64)
    got = values(found)
    assert (got["max_sequences"], got["token_budget"], got["prefill_chunk_tokens"]) == (300, 512, 512)
    assert (got["max_slots"], got["host_bytes"], got["start_s"], got["max_rank"]) == (7, 3 * GIB, 9, 64)
    chosen = {choice.name for choice in found.choices if choice.why == "as the operator chose"}
    assert chosen == {"max_sequences", "token_budget", "max_slots", "host_bytes", "start_s", "max_rank"}
    budget = derived(memory=replace(AUTO, budget_bytes=20 * GIB))
    assert (budget.budget.value, budget.budget.why) == (20 * GIB, "as the operator chose")
    assert budget.engine.max_sequences.value == 10 * GIB // (512 * 65_536 * 2)
    assert "auto" not in str(budget)
    with pytest.raises(InvalidRequest, match="max_slots: 0 must be at least 1"):
        derived(max_slots=0)


def test_a_card_that_does_not_hold_the_weights_is_refused_with_the_numbers() -> None:
    with pytest.raises(
        InvalidRequest, match=r"device: .* take 15\.0 GiB in bfloat16 and T4 has 15\.0 GiB of 16\.0 GiB"
    ):
        derived(Card("T4", 16 * GIB, 15 * GIB))


def test_the_flags_reach_the_settings(tmp_path: Path) -> None:
    write_tracer_base(tmp_path / "base")

    def settings(*flags: str, card: Card | None = H200) -> Settings:
        options = build_parser().parse_args(["serve", *flags])
        return settings_of(options, Home(tmp_path), tmp_path / "base", card)

    cuda = settings("--device", "cuda")
    assert cuda.memory.budget_bytes == 0, "a profiling pass"
    assert cuda.summary is not None
    assert cuda.summary.startswith("settings for NVIDIA H200")
    assert cuda.device == "cuda"
    assert cuda.scheduler.token_budget == MOST_TOKENS
    assert cuda.memory.max_slots == cuda.scheduler.max_sequences == 256
    assert cuda.host_bytes is not None
    assert cuda.restarts.start_s > RestartConfig().start_s
    assert settings("--device", "cuda", "--memory-budget", "auto") == cuda
    own = settings("--memory-budget", "2GiB", "--host-tier", "3GiB", "--max-slots", "5", "--start-s", "77")
    assert (own.memory.budget_bytes, own.host_bytes, own.memory.max_slots) == (2 * GIB, 3 * GIB, 5)
    assert own.restarts.start_s == 77
    assert settings("--memory-budget-mb", "64").memory.budget_bytes == 64 << 20


def test_a_cpus_settings_are_as_they_were(tmp_path: Path) -> None:
    write_tracer_base(tmp_path / "base")

    def settings(*flags: str) -> Settings:
        return settings_of(build_parser().parse_args(["serve", *flags]), Home(tmp_path), tmp_path / "base", None)

    plain = settings()
    assert (plain.memory.budget_bytes, plain.memory.max_slots) == (
        MemoryConfig().budget_bytes,
        MemoryConfig().max_slots,
    )
    assert (plain.summary, plain.host_bytes, plain.restarts) == (None, None, RestartConfig())
    assert plain.scheduler.context_tokens == SchedulerConfig().context_tokens
    assert [choice.name for choice in plain.choices[:2]] == ["dtype", "max_sequences"]
    assert settings("--memory-budget", "auto") == plain
    own = settings("--host-tier", "3GiB", "--max-slots", "5", "--start-s", "77")
    assert (own.host_bytes, own.memory.max_slots, own.restarts.start_s) == (3 * GIB, 5, 77.0)


@pytest.mark.parametrize(
    ("device", "words"), [("cuda:99", "'cuda:99'"), ("tpu", "'tpu' is not served; use cpu or cuda")]
)
def test_a_device_that_is_not_there_is_refused_before_anything_starts(tmp_path: Path, device: str, words: str) -> None:
    """Plainly, on standard error, with an exit status: nothing was made, and no base was downloaded."""
    home = tmp_path / "home"
    program = "import sys; from lorry.cli.app import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "serve", "--device", device, "--home", str(home)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"lorry: INVALID_ARGUMENT INVALID_REQUEST: device: {words}"), done.stderr
    assert done.stderr.count("\n") == 1
    assert not home.exists()


SAID = '{"name": "NVIDIA H200", "total_bytes": 7, "free_bytes": 6}'


def test_a_card_is_what_the_child_says() -> None:
    code = f"import sys; print('a warning'); sys.argv[1] == 'cuda:0' and print('{SAID}')"
    assert look("cuda:0", program=(sys.executable, "-c", code)) == Card("NVIDIA H200", 7, 6)


@pytest.mark.parametrize(
    ("code", "limit_s", "words"),
    [
        ("import sys; sys.exit('CUDA error: no driver')", 60.0, r"cannot be looked at \(CUDA error: no driver\)"),
        ("pass", 60.0, r"cannot be looked at \(status 0\)"),
        ("import threading; threading.Event().wait()", 0.0, r"did not answer for 0 s"),
    ],
)
def test_a_card_that_cannot_be_looked_at_is_named(code: str, limit_s: float, words: str) -> None:
    with pytest.raises(FailedPrecondition, match=rf"device: 'cuda' {words}"):
        look("cuda", limit_s, (sys.executable, "-c", code))


def test_looking_needs_no_torch_here() -> None:
    code = "import sys, lorry.engine.gpu.settings; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
