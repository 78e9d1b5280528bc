"""The prefix cache on the workload that it is for: prompts of which 80% are common, with the cache and without.

    python benchmarks/bench_shared_prompt.py [--tiny] [--requests 32] [--rounds 3] [--json PATH]

One engine; requests with a cache salt use the cache and those without keep out of it, and a new salt is a cold cache.
Each round runs the same prompts both ways: first one request, then the others, a few at a time. ``prefill tokens`` are
what the engine computed, by its own count. Ratios are medians over the rounds. ``same_answers`` holds in float32 (the
tests show it); in bfloat16 a product's last bit depends on how many rows it has, cached or not.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine_runs import Reply, add_base_option, ask, chosen_base, engine_config, running
from reporting import keep, parser_of, show

from lorry.config import EngineConfig
from lorry.engine.contract import EngineClient

COMMON = 0.8
AT_ONCE, OUT = 4, 8


@dataclass(frozen=True, slots=True)
class Run:
    """Of one way through the workload. Seconds."""

    prefill_tokens: int
    cached_tokens: int
    ttft_p50: float
    seconds: float
    ids: list[tuple[int, ...]]


def prompts_of(requests: int, tokens: int, vocabulary: int, seed: int) -> list[list[int]]:
    rng = random.Random(seed)

    def draw(count: int) -> list[int]:
        return [rng.randrange(17, vocabulary) for _ in range(count)]

    common = draw(int(tokens * COMMON))
    return [common + draw(tokens - len(common)) for _ in range(requests)]


async def prefill_tokens(engine: EngineClient) -> int:
    """Computed since the engine's start."""
    return int((await engine.state()).get("prefill_tokens", 0))


async def way(engine: EngineClient, prompts: Sequence[Sequence[int]], salt: bytes) -> Run:
    before = await prefill_tokens(engine)
    replies: list[Reply | None] = [await ask(engine, prompts[0], OUT, salt=salt)] + [None] * (len(prompts) - 1)
    waiting = iter(range(1, len(prompts)))

    async def reader() -> None:
        for number in waiting:
            replies[number] = await ask(engine, prompts[number], OUT, salt=salt)

    await asyncio.gather(*(reader() for _ in range(AT_ONCE)))
    done = [reply for reply in replies if reply is not None]
    return Run(
        prefill_tokens=await prefill_tokens(engine) - before,
        cached_tokens=sum(reply.finished.cached_prompt_tokens for reply in done),
        ttft_p50=statistics.median(reply.ttft for reply in done[1:]),
        seconds=max(reply.last for reply in done) - done[0].sent,
        ids=[reply.ids for reply in done],
    )


async def measure(config: EngineConfig, requests: int, prompt_tokens: int, rounds: int) -> dict[str, Any]:
    """``prompt_tokens`` a prompt. Each way is warmed up once before."""
    found: list[tuple[Run, Run]] = []
    async with running(config) as engine:
        vocabulary = (await engine.info()).vocabulary
        for number in range(-1, rounds):
            prompts = prompts_of(requests if number >= 0 else 2, prompt_tokens, vocabulary, number)
            off = await way(engine, prompts, b"")
            on = await way(engine, prompts, b"round %d" % number)
            if number >= 0:
                found.append((on, off))
    return {
        "benchmark": "shared_prompt",
        "requests": requests,
        "prompt_tokens": prompt_tokens,
        "common": COMMON,
        "rounds": rounds,
        "prefill_tokens_without": found[0][1].prefill_tokens,
        "prefill_tokens_with": found[0][0].prefill_tokens,
        "prefill_tokens_saved": round(statistics.median(1 - a.prefill_tokens / b.prefill_tokens for a, b in found), 3),
        "ttft_ratio": round(statistics.median(a.ttft_p50 / b.ttft_p50 for a, b in found), 3),
        "time_ratio": round(statistics.median(a.seconds / b.seconds for a, b in found), 3),
        "ttft_p50_ms_without": round(1e3 * statistics.median(b.ttft_p50 for _, b in found), 1),
        "ttft_p50_ms_with": round(1e3 * statistics.median(a.ttft_p50 for a, _ in found), 1),
        "cached_tokens": found[0][0].cached_tokens,
        "cached_tokens_without": sum(b.cached_tokens for _, b in found),
        "same_answers": all(a.ids == b.ids for a, b in found),
    }


def main() -> None:
    parser = parser_of(__doc__)
    add_base_option(parser)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--prompt-tokens", type=int, default=320)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with chosen_base(options) as (base_dir, scratch):
        config = engine_config(base_dir, scratch, tiny=options.tiny)
        result = asyncio.run(measure(config, options.requests, options.prompt_tokens, options.rounds))
    show(
        f"{options.requests} prompts of {options.prompt_tokens} tokens, 80% of them common",
        ("cache", "prefill tokens", "of off", "TTFT p50 ms", "of off"),
        [
            ("off", result["prefill_tokens_without"], 1.0, result["ttft_p50_ms_without"], 1.0),
            (
                "on",
                result["prefill_tokens_with"],
                1 - result["prefill_tokens_saved"],
                result["ttft_p50_ms_with"],
                result["ttft_ratio"],
            ),
        ],
    )
    keep(result, options.json)


if __name__ == "__main__":
    main()
