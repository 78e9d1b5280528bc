"""Settings that follow from base, budget and cores, each with its reason."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lorry.cli.app import build_parser
from lorry.cli.serve import _http_port, chosen_settings
from lorry.cli.sizes import fraction, part, size
from lorry.config import HTTP_PORT, MemoryConfig, SchedulerConfig
from lorry.engine.settings import DECODE_STEP_S, MIXED_STEP_S, EngineSettings, ModelNumbers, derive
from lorry.errors import InvalidRequest, UnsupportedBase
from lorry.memory import split_budget
from tests.support.tracers import write_tracer_base

SMOL = ModelNumbers(
    parameters=134_479_872, kv_elements_per_token=11_520, lora_row_elements=305_280, context_tokens=8192
)
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
        "max_rank": memory.max_rank,
        "threads": 2,
    }


@pytest.mark.parametrize("cores", [1, 2, 8, 64])
@pytest.mark.parametrize("billions", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("budget_gib", [0.25, 2.0, 64.0])
@pytest.mark.parametrize("context", [64, 2048, 131_072])
def test_whatever_the_machine_the_settings_can_run(
    cores: int, billions: float, budget_gib: float, context: int
) -> None:
    model = ModelNumbers(int(billions * 1e9), 2 * 30 * 1024, int(billions * 3e6), context)
    chosen = derive(model, MemoryConfig(budget_bytes=int(budget_gib * (1 << 30))), cores, context)
    found = values(chosen)
    assert found["token_budget"] >= found["max_sequences"] >= 1
    assert found["prefill_chunk_tokens"] <= found["token_budget"] <= 2048
    assert found["max_sequences"] <= 256
    assert 16 <= found["page_tokens"] <= 64
    assert 1 <= found["max_rank"] <= 256
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


PAGE, CHUNK = 64 * 11_520 * 4, 8 * 305_280 * 4


@pytest.mark.parametrize(
    ("budget_mib", "rank"),
    [(2048, 256), (597, 256), (596, 128), (299, 128), (298, 64), (109, 16), (108, 8), (100, 8), (99, 1)],
)
def test_the_largest_rank_is_what_the_budget_holds_and_that_is_said(budget_mib: int, rank: int) -> None:
    memory = MemoryConfig(budget_bytes=budget_mib << 20)
    choice = derive(SMOL, memory, 2, 2048).max_rank
    assert choice.value == rank
    if rank == 1:
        assert "holds no adapter" in choice.why
        with pytest.raises(InvalidRequest, match="raise it to"):
            split_budget(replace(memory, max_rank=1), PAGE, CHUNK, 2048)
        return
    split = split_budget(replace(memory, max_rank=rank), PAGE, CHUNK, 2048)
    assert f"{split.chunks_per_largest * CHUNK / (1 << 20):.1f} MiB" in choice.why
    if rank == 256:
        assert "the largest that is served" in choice.why
        return
    with pytest.raises(InvalidRequest):
        split_budget(replace(memory, max_rank=2 * rank), PAGE, CHUNK, 2048)
    found = re.search(r"256 would need a budget of (\d+) bytes", choice.why)
    assert found is not None
    enough = replace(memory, budget_bytes=int(found[1]))
    assert derive(SMOL, enough, 2, 2048).max_rank.value == 256


def test_a_rank_that_is_asked_for_is_no_power_of_two_where_it_fits() -> None:
    assert derive(SMOL, MemoryConfig(max_rank=48), 2, 2048).max_rank.value == 48
    assert derive(SMOL, MemoryConfig(max_rank=48, budget_bytes=110 << 20), 2, 2048).max_rank.value == 16


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
    assert chosen.memory(MemoryConfig(max_rank=64)).max_rank == 256
    kept = derive(SMOL, MemoryConfig(budget_bytes=100 << 20), 2, 2048, {"max_rank": 200}).max_rank
    assert (kept.value, kept.why) == (200, "as the operator chose"), "whether it fits the engine says"
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
    flags += ["--max-rank", "24", "--threads", "1"]
    options = parse(["serve", *flags, "--memory-budget", "64MiB", "--context-tokens", "100"])
    assert list(values(chosen_settings(options, tmp_path / "base")).values()) == [3, 70, 35, 8, 24, 1]
    assert options.memory_budget == 64 << 20
    assert parse(["serve", "--memory-budget-mb", "64"]).memory_budget_mb == 64
    assert parse(["serve", "--ops-port", "0"]).ops_port == 0


def test_where_openai_s_api_is_served() -> None:
    parse = build_parser().parse_args
    found = [
        _http_port(parse(["serve", *flags]))
        for flags in ([], ["--port", "0"], ["--http-port", "7"], ["--port", "0", "--http-port", "7"], ["--no-http"])
    ]
    assert found == [HTTP_PORT, 0, 7, 7, None]


def test_fractions_of_the_budget_are_flags(tmp_path: Path) -> None:
    write_tracer_base(tmp_path / "base")
    parse = build_parser().parse_args
    given = parse(["serve", "--adapter-fraction", "0.01", "--extras-fraction", "0", "--kv-fraction=.5"])
    assert (given.adapter_fraction, given.extras_fraction, given.kv_fraction) == (0.01, 0.0, 0.5)
    memory = MemoryConfig()
    plain = parse(["serve"])
    assert plain.adapter_fraction == memory.adapter_fraction
    assert (plain.extras_fraction, plain.kv_fraction) == (memory.extras_fraction, memory.kv_fraction)
    tight = parse(["serve", "--memory-budget", "8MiB", "--adapter-fraction", "0.01"])
    wide = parse(["serve", "--memory-budget", "8MiB", "--adapter-fraction", "0.9"])
    ranks = [chosen_settings(options, tmp_path / "base").max_rank.value for options in (tight, wide)]
    assert ranks[0] < ranks[1], "the flag reaches what is derived"


@pytest.mark.parametrize("text", ["", "-0.1", "1", "1.5", "nan", "inf", "half", "50%"])
def test_what_is_no_fraction(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="fraction"):
        fraction(text)


def test_a_part_is_more_than_nothing() -> None:
    assert part("0.5") == fraction("0.5") == 0.5
    assert fraction("0") == 0.0
    with pytest.raises(argparse.ArgumentTypeError, match="more than 0"):
        part("0.0")
