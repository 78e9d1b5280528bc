"""Chats overtake a long prompt that came before them; the times are the real model's."""

import random
from pathlib import Path

import pytest
from bench_head_of_line import Request, Workload, draw, measure, replay
from engine_runs import engine_config, running, write_tiny

from tests.support.results import keep_result


async def test_chats_overtake_a_long_prompt_that_came_before_them(tmp_path: Path) -> None:
    """All are there before the first step ends. Fifteen prefill steps of the long one lie before its first token."""
    rng = random.Random(0)
    config = engine_config(write_tiny(tmp_path / "base"), tmp_path, tiny=True)
    async with running(config) as engine:
        chats = [Request(0.0, draw(rng, 12, 300), 4) for _ in range(8)]
        long, *others = await replay(engine, [Request(0.0, draw(rng, 900, 300), 4), *chats])
    assert all(reply.first < long.first for reply in others)
    assert all(len(reply.ids) == 4 for reply in (long, *others))


async def test_the_benchmark_measures_what_it_says(tmp_path: Path) -> None:
    config = engine_config(write_tiny(tmp_path / "base"), tmp_path, tiny=True)
    result = await measure(config, Workload(long_tokens=200, every_s=0.0, chat_tokens=(4, 8), out=(2, 4)), rounds=1)
    assert 0 < result["ttft_p50_ms_without"] <= result["ttft_p95_ms_without"]
    assert result["p95_ratio"] > 0


@pytest.mark.model
@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_on_the_real_model(base_dir: Path, tmp_path: Path) -> None:
    result = await measure(engine_config(base_dir, tmp_path, tiny=False), Workload(), rounds=5)
    keep_result("head_of_line", result)
    assert result["p95_ratio"] <= 1.5
