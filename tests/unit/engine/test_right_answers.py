"""Tokens against transformers and PEFT in float32: alone, all in one batch, whole and chunked prefill."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lorry.config import SchedulerConfig
from tests.support.adapters import save_adapter
from tests.support.engines import ask, engine_config, running
from tests.support.tiny_base import write_tiny_base

TIE = 1e-3
TOKENS = 24

KINDS: dict[str, dict[str, Any]] = {
    "r8-all": {"r": 8, "lora_alpha": 16},
    "r16-qv": {"r": 16, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]},
    "r4-rslora": {"r": 4, "lora_alpha": 8, "use_rslora": True, "target_modules": ["q_proj", "o_proj", "down_proj"]},
    "r3-odd": {"r": 3, "lora_alpha": 5, "target_modules": ["k_proj", "up_proj"]},
    "patterns": {
        "r": 8,
        "lora_alpha": 8,
        "rank_pattern": {"q_proj": 2, "layers.1.mlp.down_proj": 12},
        "alpha_pattern": {"v_proj": 32},
    },
    "one-layer": {"r": 5, "lora_alpha": 10, "layers_to_transform": [1]},
}


def greedy(model: Any, prompt: Sequence[int], tokens: int) -> tuple[list[int], int]:
    """The oracle's greedy ids, and how many of them are clear of ties (top-two gap of TIE and more)."""
    ids = list(prompt)
    clear = tokens
    with torch.inference_mode():
        for i in range(tokens):
            logits = model(torch.tensor([ids])).logits[0, -1]
            top = torch.topk(logits, 2).values
            if float(top[0] - top[1]) < TIE:
                clear = min(clear, i)
            ids.append(int(torch.argmax(logits)))
    return ids[len(prompt) :], clear


@pytest.mark.parametrize("chunk", [64, 7], ids=["whole", "chunked"])
async def test_every_adapter_and_the_base_alone_and_together(tmp_path: Path, chunk: int) -> None:
    base = write_tiny_base(tmp_path / "base")
    tuned = {name: save_adapter(base, tmp_path / name, seed=i, **kind) for i, (name, kind) in enumerate(KINDS.items())}
    generator = torch.Generator().manual_seed(11)
    prompts = [torch.randint(0, 256, (n,), generator=generator).tolist() for n in (5, 17, 33, 40, 9, 21, 28)]
    config = engine_config(
        tmp_path / "base",
        scheduler=SchedulerConfig(max_sequences=8, token_budget=64, prefill_chunk_tokens=chunk, context_tokens=256),
    )
    async with running(config) as r:
        refs = [None, *(r.host.add(tmp_path / name) for name in KINDS)]
        models = [base, *tuned.values()]
        alone = [await ask(r.engine, p, ref, TOKENS) for p, ref in zip(prompts, refs, strict=True)]
        together = await asyncio.gather(*(ask(r.engine, p, ref, TOKENS) for p, ref in zip(prompts, refs, strict=True)))
        mixed = (await r.engine.state())["distinct_adapters"]
    assert max(mixed) == 7, "all in one batch, the base counted"
    compared = 0
    for prompt, ref, model, one, all_ in zip(prompts, refs, models, alone, together, strict=True):
        want, clear = greedy(model, prompt, TOKENS)
        for answer in (one, all_):
            assert list(answer.ids[:clear]) == want[:clear]
            assert answer.finished.provenance.adapter == (ref.digest if ref else None)
            assert answer.finished.output_tokens == TOKENS
        compared += clear
    assert compared > 5 * TOKENS, "ties must be the exception, or nothing is shown"
    assert len({a.ids for a in alone}) == 7, "the adapters differ visibly"


async def test_the_same_seed_gives_the_same_tokens_in_any_company(tmp_path: Path) -> None:
    from lorry.request import SamplingParams

    base = write_tiny_base(tmp_path / "base")
    save_adapter(base, tmp_path / "a", seed=1)
    hot = SamplingParams(temperature=1.2, top_p=0.95, top_k=50, seed=77)
    async with running(engine_config(tmp_path / "base")) as r:
        ref = r.host.add(tmp_path / "a")
        alone = await ask(r.engine, [1, 2, 3], ref, 16, hot)
        others = [ask(r.engine, [9 + i] * (i + 1), None, 16, replace(hot, seed=i)) for i in range(5)]
        again, *_ = await asyncio.gather(ask(r.engine, [1, 2, 3], ref, 16, hot), *others)
        different = await ask(r.engine, [1, 2, 3], ref, 16, replace(hot, seed=78))
    assert again.ids == alone.ids
    assert different.ids != alone.ids
