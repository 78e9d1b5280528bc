"""Logprobs of a whole engine against transformers: prompt and output, whole and chunked, base and adapter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lorry.config import SchedulerConfig
from lorry.request import OutputParams, SamplingParams
from tests.support.adapters import save_adapter
from tests.support.engines import engine_config, running
from tests.support.tiny_base import write_tiny_base
from tests.unit.engine.heard import hear
from tests.unit.engine.plans import check_logprobs, oracle_logprobs


@pytest.mark.parametrize("chunk", [64, 7], ids=["whole", "chunked"])
async def test_prompt_and_output(tmp_path: Path, chunk: int) -> None:
    base = write_tiny_base(tmp_path / "base")
    models = [base, save_adapter(base, tmp_path / "one", seed=1)]
    scheduler = SchedulerConfig(max_sequences=8, token_budget=64, prefill_chunk_tokens=chunk, context_tokens=256)
    generator = torch.Generator().manual_seed(8)
    prompts = [torch.randint(0, 320, (length,), generator=generator).tolist() for length in (90, 30)]
    # Penalties change what is drawn and not what is stated.
    sampling = SamplingParams(temperature=0.9, seed=4, repetition_penalty=1.5, logit_bias=((3, 2.0),))
    async with running(engine_config(tmp_path / "base", scheduler=scheduler)) as r:
        ref = r.host.add(tmp_path / "one")
        for prompt, adapter, model in zip(prompts, (None, ref), models, strict=True):
            heard = await hear(r.engine, prompt, 12, adapter=adapter, sampling=sampling, n=2, output=OutputParams(5, 3))
            want = oracle_logprobs(model, prompt, [])
            check_logprobs(heard.started.prompt_logprobs, prompt[1:], want[:-1], 3)
            for ids, logprobs in zip(heard.ids, heard.logprobs, strict=True):
                rows = oracle_logprobs(model, prompt, ids)[len(prompt) - 1 : -1]
                check_logprobs(logprobs, ids, rows, 5)
            again = await hear(r.engine, prompt, 12, adapter=adapter, sampling=sampling, n=2)
            assert again.ids == heard.ids, "asking for logprobs changes no token"
            assert again.started.prompt_logprobs == ()
            assert again.logprobs == [(), ()]
        one = await hear(r.engine, [5], 2, output=OutputParams(prompt_logprobs=1))
        assert one.started.prompt_logprobs == (), "the first token has no logprob"
