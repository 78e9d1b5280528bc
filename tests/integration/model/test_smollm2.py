"""SmolLM2 and the example adapters against transformers and PEFT, the same weights in float32.

64 greedy tokens each, alone (with whole prefill: most of them fewer) and all in one batch, with whole and with chunked
prefill; fewer from cached prefixes and under preemption. One forward pass of the oracle over prompt and answer gives
its logits at every position: where its choice, given the same beginning, is the engine's token at every position, its
greedy answer is the engine's answer.
"""

import asyncio
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from lorry.config import EngineConfig, MemoryConfig, SchedulerConfig
from lorry.engine import runner
from lorry.engine.contract import EngineClient
from lorry.engine.sampler import draw
from lorry.engine.transport_client import GrpcEngineClient
from lorry.engine.transport_server import serve_engine
from lorry.text import Tokenizer
from tests.support.engines import Answer, ask, engine_config, preempt_at_every_step, running

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).parents[3] / "examples" / "adapters"
TOKENS = 64
ALONE_TOKENS = 16
"""Of all but the first two, alone with whole prefill: what differs alone differs from the first token on, and the batch
has all 64."""
LOGITS_WITHIN = 1e-3
TIE = 1e-3
CACHED_TOKENS = 24
QUESTIONS = [
    "What is the capital of France?",
    "Why is the sky blue?",
    "Name three animals that live in the sea, and say what each of them eats.",
    "What is a lorry?",
]


@pytest.fixture(scope="module")
def oracle(base_dir: Path) -> dict[str, Any]:
    """By name: "" is the base, the others are PEFT models over one copy of it each by `set_adapter`."""
    names = sorted(folder.name for folder in EXAMPLES.iterdir() if folder.is_dir())
    model: Any = AutoModelForCausalLM.from_pretrained(base_dir, dtype=torch.float32)
    tuned = PeftModel.from_pretrained(model, EXAMPLES / names[0], adapter_name=names[0])
    for name in names[1:]:
        tuned.load_adapter(EXAMPLES / name, adapter_name=name)
    tuned.eval()
    return {"names": names, "model": tuned, "known": {}}


def oracle_logits(oracle: dict[str, Any], name: str, ids: list[int]) -> torch.Tensor:
    """``[len(ids), V]``: of a beginning of ids that were asked before, a part of those."""
    known: tuple[tuple[int, ...], torch.Tensor] = oracle["known"].get(name, ((), torch.empty(0)))
    if tuple(ids) != known[0][: len(ids)]:
        known = oracle["known"][name] = tuple(ids), forward(oracle["model"], name, ids)
    return known[1][: len(ids)]


@torch.inference_mode()
def forward(model: Any, name: str, ids: list[int]) -> torch.Tensor:
    if not name:
        with model.disable_adapter():
            logits: torch.Tensor = model(torch.tensor([ids])).logits[0]
            return logits
    model.set_adapter(name)
    logits = model(torch.tensor([ids])).logits[0]
    return logits


def check(oracle: dict[str, Any], name: str, prompt: list[int], answer: Answer, logits: list[torch.Tensor]) -> int:
    """Returns how many of the answer's tokens were compared; after a tie of the oracle nothing is."""
    assert len(answer.ids) == len(logits)
    want = oracle_logits(oracle, name, [*prompt, *answer.ids])[len(prompt) - 1 : -1]
    got = torch.stack(logits)
    assert float((got - want).abs().max()) < LOGITS_WITHIN, f"{name or 'base'}: logits differ"
    for i, token in enumerate(answer.ids):
        top = torch.topk(want[i], 2)
        if float(top.values[0] - top.values[1]) < TIE:
            return i
        assert int(top.indices[0]) == token, f"{name or 'base'}: token {i}"
    return len(answer.ids)


@pytest.fixture(scope="module")
def prompts(base_dir: Path, oracle: dict[str, Any]) -> dict[str, list[int]]:
    """By name, a question each."""
    tokenizer = Tokenizer.load(base_dir)
    return {
        name: tokenizer.encode(
            tokenizer.render_chat([{"role": "user", "content": QUESTIONS[i % 4]}]), add_special=False
        )
        for i, name in enumerate(["", *oracle["names"]])
    }


def config_of(base_dir: Path, chunk: int) -> EngineConfig:
    return replace(
        engine_config(base_dir),
        threads=2,
        scheduler=SchedulerConfig(max_sequences=8, token_budget=256, prefill_chunk_tokens=chunk, context_tokens=512),
        memory=MemoryConfig(budget_bytes=900 << 20, page_tokens=64),
    )


@pytest.mark.parametrize("chunk", [256, pytest.param(19, marks=pytest.mark.soak)], ids=["whole", "chunked"])
async def test_every_adapter_and_the_base(
    base_dir: Path,
    oracle: dict[str, Any],
    prompts: dict[str, list[int]],
    chunk: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded: dict[int, list[torch.Tensor]] = defaultdict(list)

    def recording(sampled: Any, sequences: Any, logits: torch.Tensor) -> Any:
        for row, step in enumerate(sampled):
            recorded[step.sequence].append(logits[row].clone())
        return draw(sampled, sequences, logits)

    names = list(prompts)
    compared, asked = list[int](), list[int]()
    async with running(config_of(base_dir, chunk)) as r:
        await r.engine.state()  # answered once it is warm
        monkeypatch.setattr(runner, "draw", recording)
        refs = [r.host.add(EXAMPLES / name) if name else None for name in names]
        for number, ((name, prompt), ref) in enumerate(zip(prompts.items(), refs, strict=True)):
            recorded.clear()
            asked.append(TOKENS if number < 2 or chunk < 256 else ALONE_TOKENS)
            answer = await ask(r.engine, prompt, ref, asked[-1])
            assert len(answer.ids) == asked[-1]
            compared.append(check(oracle, name, prompt, answer, next(iter(recorded.values()))))
        recorded.clear()
        crowd = await asyncio.gather(
            *(ask(r.engine, prompts[n], ref, TOKENS) for n, ref in zip(names, refs, strict=True))
        )
        state = await r.engine.state()
        # Sequences are numbered in the order of admission, which is that of submission here.
        for name, answer, sequence in zip(names, crowd, sorted(recorded), strict=True):
            asked.append(TOKENS)
            assert len(answer.ids) == TOKENS
            compared.append(check(oracle, name, prompts[name], answer, recorded[sequence]))
    assert max(state["distinct_adapters"]) == len(names), "all ran in one batch"
    assert len({answer.text for answer in crowd}) == len(names)
    assert sum(compared) > 0.8 * sum(asked), f"too many ties to show anything: {compared}"


async def test_cached_and_preempted_at_every_step(
    base_dir: Path, oracle: dict[str, Any], prompts: dict[str, list[int]]
) -> None:
    """The same greedy tokens as transformers', up to its first tie, when a prefix was found, over the engine's
    transport, and when one sequence is preempted at every step."""
    config = config_of(base_dir, 256)
    config = replace(config, memory=replace(config.memory, page_tokens=16))
    async with running(config) as r:
        refs = {name: r.host.add(EXAMPLES / name) if name else None for name in prompts}

        async def crowd(engine: EngineClient, tokens: int = CACHED_TOKENS) -> dict[str, Answer]:
            answers = await asyncio.gather(
                *(ask(engine, prompts[name], refs[name], tokens, cache_salt=b"salt") for name in prompts)
            )
            return dict(zip(prompts, answers, strict=True))

        cold = await crowd(r.engine)
        want = {name: clear_of_ties(oracle, name, prompts[name], answer) for name, answer in cold.items()}
        assert sum(map(len, want.values())) > 0.8 * CACHED_TOKENS * len(want), "ties must be the exception"
        server = await serve_engine(r.engine, f"unix:{base_dir.parent}/same-tokens.sock")
        client = GrpcEngineClient(server.address)
        try:
            warm = await crowd(client)
        finally:
            await client.close()
            await server.stop()
        assert all(answer.finished.cached_prompt_tokens >= 16 for answer in warm.values())
        met = preempt_at_every_step(r)
        preempted = await crowd(r.engine, 20)
        assert len(met) == len(prompts)
        assert r.parts.scheduler.state()["preemptions"] >= 18
    for answers, what in ((warm, "cached, over the transport"), (preempted, "preempted")):
        for name, answer in answers.items():
            clear = want[name][: len(answer.ids)]
            assert answer.ids[: len(clear)] == clear, f"{what}: {name or 'base'}"


def clear_of_ties(oracle: dict[str, Any], name: str, prompt: list[int], answer: Answer) -> tuple[int, ...]:
    """The answer's tokens up to the oracle's first tie; all of them are the oracle's choices."""
    logits = oracle_logits(oracle, name, [*prompt, *answer.ids])[len(prompt) - 1 : -1]
    for i, token in enumerate(answer.ids):
        top = torch.topk(logits[i], 2)
        if float(top.values[0] - top.values[1]) < TIE:
            return answer.ids[:i]
        assert int(top.indices[0]) == token, f"{name or 'base'}: token {i}"
    return answer.ids
