"""Prompts of which 80% are common: what is computed falls by three quarters, and not a token of the answers changes."""

from pathlib import Path

import pytest
from bench_shared_prompt import measure
from engine_runs import engine_config, write_tiny

from tests.support.results import keep_result


async def test_three_quarters_of_the_prefill_are_saved(tmp_path: Path) -> None:
    config = engine_config(write_tiny(tmp_path / "base"), tmp_path, tiny=True)
    result = await measure(config, requests=24, prompt_tokens=160, rounds=2)
    assert result["prefill_tokens_saved"] >= 0.75
    # A chunk of one token counts as a decode, so a prefill may come out a token or two short.
    without = result["prefill_tokens_without"]
    assert 0.98 * 24 * 160 <= without <= 24 * 160, "without a salt nothing is shared"
    assert result["cached_tokens_without"] == 0
    assert result["cached_tokens"] == pytest.approx(without - result["prefill_tokens_with"], abs=48)
    assert result["same_answers"]


@pytest.mark.model
@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_on_the_real_model(base_dir: Path, tmp_path: Path) -> None:
    result = await measure(engine_config(base_dir, tmp_path, tiny=False), requests=32, prompt_tokens=320, rounds=3)
    keep_result("shared_prompt", result)
    assert result["prefill_tokens_saved"] >= 0.75
    assert result["ttft_ratio"] < 1.0
