"""Settings that follow from base, budget and cores, each with its reason."""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lorry.cli.app import build_parser
from lorry.cli.serve import chosen_settings
from lorry.cli.sizes import size
from lorry.config import MemoryConfig, SchedulerConfig
from lorry.engine.settings import DECODE_STEP_S, MIXED_STEP_S, EngineSettings, ModelNumbers, derive
from lorry.errors import InvalidRequest, UnsupportedBase
from tests.support.tracers import write_tracer_base

SMOL = ModelNumbers(parameters=134_479_872, kv_elements_per_token=11_520, context_tokens=8192)
"""SmolLM2-135M in bfloat16."""


def values(chosen: EngineSettings) -> dict[str, int]:
    return {choice.name: choice.value for choice in chosen.choices}


def test_the_demos_machine_gets_the_demos_numbers() -> None:
    found = values(derive(SMOL, MemoryConfig(), 2, 2048))
    defaults, memory = SchedulerConfig(), MemoryConfig()
    assert found == {
        "max_sequences": defaults.max_sequences,
        "token_budget": defaults.token_budget,
        "prefill_chunk_tokens": defaults.prefill_chunk_tokens,
        "page_tokens": memory.page_tokens,
        "threads": 2,
    }


@pytest.mark.parametrize("cores", [1, 2, 8, 64])
@pytest.mark.parametrize("billions", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("budget_gib", [0.25, 2.0, 64.0])
@pytest.mark.parametrize("context", [64, 2048, 131_072])
def test_whatever_the_machine_the_settings_can_run(
    cores: int, billions: float, budget_gib: float, context: int
) -> None:
    model = ModelNumbers(int(billions * 1e9), 2 * 30 * 1024, context)
    chosen = derive(model, MemoryConfig(budget_bytes=int(budget_gib * (1 << 30))), cores, context)
    found = values(chosen)
    assert found["token_budget"] >= found["max_sequences"] >= 1
    assert found["prefill_chunk_tokens"] <= found["token_budget"] <= 2048
    assert found["max_sequences"] <= 256
    assert 16 <= found["page_tokens"] <= 64
    assert found["threads"] == cores
    for choice in chosen.choices:
        assert len(choice.why) > 20
        assert str(choice).startswith(f"{choice.name} = {choice.value} ")


def test_what_binds_is_what_is_said() -> None:
    small = derive(SMOL, MemoryConfig(budget_bytes=100 << 20), 2, 2048)
    assert small.max_sequences.value == 2
    assert "fit" in small.max_sequences.why
    assert "100.0 MiB" in small.max_sequences.why
    usual = derive(SMOL, MemoryConfig(), 2, 2048)
    assert f"{DECODE_STEP_S:.2f} s" in usual.max_sequences.why
    assert f"{MIXED_STEP_S:g} s" in usual.token_budget.why
    big = derive(replace(SMOL, parameters=3_000_000_000), MemoryConfig(), 2, 2048)
    assert big.token_budget.value == 64
    assert "least" in big.token_budget.why


def test_more_of_a_resource_never_gives_less() -> None:
    previous = derive(SMOL, MemoryConfig(), 1, 2048)
    for cores in (2, 4, 8, 16, 32):
        now = derive(SMOL, MemoryConfig(), cores, 2048)
        assert now.max_sequences.value >= previous.max_sequences.value
        assert now.token_budget.value >= previous.token_budget.value
        previous = now


def test_an_operators_choice_stands_and_the_rest_follows_it() -> None:
    chosen = derive(SMOL, MemoryConfig(), 2, 2048, {"max_sequences": 300, "threads": None, "page_tokens": 32})
    assert chosen.max_sequences.value == 300
    assert chosen.max_sequences.why == "as the operator chose"
    assert chosen.token_budget.value >= 300
    assert chosen.memory(MemoryConfig()).page_tokens == 32
    assert chosen.scheduler(SchedulerConfig(context_tokens=99)).context_tokens == 99
    with pytest.raises(InvalidRequest, match="threads"):
        derive(SMOL, MemoryConfig(), 2, 2048, {"threads": 0})


def test_the_numbers_of_a_base_come_from_its_config(tmp_path: Path) -> None:
    write_tracer_base(tmp_path / "base")
    numbers = ModelNumbers.read(tmp_path / "base", "float32")
    heads = 128 * 32 + 2 * 128 * 16 + 32 * 128
    assert numbers.parameters == heads + 3 * 128 * 16 + 2 * 320 * 128
    assert numbers.weight_bytes == 4
    with pytest.raises(UnsupportedBase, match="base"):
        ModelNumbers.read(tmp_path, "float32")


def test_it_needs_no_torch() -> None:
    code = "import sys, lorry.engine.settings, lorry.engine.supervise; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2GiB", 2 << 30),
        ("2 gib", 2 << 30),
        ("512MiB", 512 << 20),
        ("1.5GiB", 3 << 29),
        ("1GB", 1_000_000_000),
        ("64K", 64_000),
        ("2147483648", 2 << 30),
        ("10B", 10),
    ],
)
def test_sizes(text: str, wanted: int) -> None:
    assert size(text) == wanted


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "2TiBs", "1e9", "two"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="size"):
        size(text)


def test_flags_of_serve_override_what_is_derived(tmp_path: Path) -> None:
    write_tracer_base(tmp_path / "base")
    parse = build_parser().parse_args
    free = chosen_settings(parse(["serve"]), tmp_path / "base")
    assert all(choice.why != "as the operator chose" for choice in free.choices)
    flags = ["--max-sequences", "3", "--token-budget", "70", "--prefill-chunk-tokens", "35", "--page-tokens", "8"]
    options = parse(["serve", *flags, "--threads", "1", "--memory-budget", "64MiB", "--context-tokens", "100"])
    assert list(values(chosen_settings(options, tmp_path / "base")).values()) == [3, 70, 35, 8, 1]
    assert options.memory_budget == 64 << 20
    assert parse(["serve", "--memory-budget-mb", "64"]).memory_budget_mb == 64
    assert parse(["serve", "--ops-port", "0"]).ops_port == 0
