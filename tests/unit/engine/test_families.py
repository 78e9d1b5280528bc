"""The whole engine on every family: base and PEFT adapters, greedy tokens equal to transformers' ``generate``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from lorry.config import MemoryConfig, SchedulerConfig
from tests.support.adapters import save_adapter
from tests.support.engines import ask, engine_config, running
from tests.support.oracle import generated
from tests.support.tiny_base import write_tiny_model

TIE = 1e-3
TOKENS = 24
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10000.0}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama biased, yarn": ("llama", {"attention_bias": True, "mlp_bias": True, "rope_parameters": YARN}),
    "mistral": ("mistral", {"sliding_window": 18}),
    "qwen2": ("qwen2", {"use_sliding_window": True, "sliding_window": 18, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 24}),
}
ADAPTERS: dict[str, dict[str, Any]] = {
    "all": {"r": 8, "lora_alpha": 16},
    "qv": {"r": 4, "lora_alpha": 8, "use_rslora": True, "target_modules": ["q_proj", "v_proj"]},
    "by class": {"r": 3, "lora_alpha": 9, "target_modules": "all-linear", "task_type": None},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("chunk", "page"), [(64, 16), (7, 5)], ids=["whole", "chunked"])
async def test_base_and_adapters_alone_and_together(tmp_path: Path, case: str, chunk: int, page: int) -> None:
    family, changes = CASES[case]
    base = write_tiny_model(tmp_path / "base", family, shard_size="60KB", tie_word_embeddings=False, **changes)
    tuned = [save_adapter(base, tmp_path / name, seed=i, **kind) for i, (name, kind) in enumerate(ADAPTERS.items())]
    generator = torch.Generator().manual_seed(13)
    prompts = [torch.randint(0, 256, (n,), generator=generator).tolist() for n in (40, 5, 33, 17)]
    config = engine_config(
        tmp_path / "base",
        scheduler=SchedulerConfig(max_sequences=8, token_budget=64, prefill_chunk_tokens=chunk, context_tokens=128),
        memory=MemoryConfig(budget_bytes=4 << 20, page_tokens=page, chunk_rank=8, max_slots=8, max_rank=16),
    )
    async with running(config) as r:
        refs = [None, *(r.host.add(tmp_path / name) for name in ADAPTERS)]
        alone = [await ask(r.engine, p, ref, TOKENS) for p, ref in zip(prompts, refs, strict=True)]
        together = await asyncio.gather(*(ask(r.engine, p, ref, TOKENS) for p, ref in zip(prompts, refs, strict=True)))
    compared = 0
    for prompt, ref, model, one, all_ in zip(prompts, refs, [base, *tuned], alone, together, strict=True):
        want, clear = generated(model, prompt, TOKENS, TIE)
        for answer in (one, all_):
            assert list(answer.ids[:clear]) == want[:clear]
            assert answer.finished.provenance.adapter == (ref.digest if ref else None)
        compared += clear
    assert compared > 3 * TOKENS, "ties must be the exception, or nothing is shown"
    assert len({answer.ids for answer in alone}) == len(refs), "the adapters differ visibly"
    assert len({token for answer in alone for token in answer.ids}) > 20, "no answer that repeats one token"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("case", CASES)
async def test_narrow_types_answer_as_float32_does_where_the_choice_is_clear(
    tmp_path: Path, case: str, dtype: str
) -> None:
    family, changes = CASES[case]
    kind = {"bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
    base = write_tiny_model(tmp_path / "base", family, dtype=kind, **changes)
    prompt = torch.randint(0, 256, (30,), generator=torch.Generator().manual_seed(2)).tolist()
    async with running(engine_config(tmp_path / "base", dtype=dtype)) as r:
        answer = await ask(r.engine, prompt, None, TOKENS)
        assert answer.finished.provenance.dtype == dtype
    want, clear = generated(base, prompt, TOKENS, TIE)
    if dtype == "bfloat16":
        clear = min(clear, 4)  # the products' own rounding may decide later ones
    assert list(answer.ids[:clear]) == want[:clear]
    assert clear >= 4
