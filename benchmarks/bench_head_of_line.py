"""One long prompt among 20 chats on the real engine: what it does to the chats' time to the first token.

    python benchmarks/bench_head_of_line.py [--tiny] [--rounds 3] [--json PATH]

Each round runs the same chats twice, at the same moments: without the long request, and with it among them (after the
fifth). p95 is over the chats of all rounds; the ratio is the one number to read. How far apart the chats come is
measured before: a burst of them shows how many the machine serves, and they come at half that rate (``--every``
overrides it). Near its full rate whatever is added, in any order, becomes a queue.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine_runs import Reply, add_base_option, ask, chosen_base, engine_config, running
from reporting import keep, parser_of, quantile, show

from lorry.config import EngineConfig
from lorry.engine.contract import EngineClient

CHATS = 20
AFTER = 5


@dataclass(frozen=True, slots=True)
class Request:
    at: float
    prompt: list[int]
    out: int


@dataclass(frozen=True, slots=True)
class Workload:
    """Chats of ``chat_tokens`` (from, to) come ``every_s`` apart on average, None: at half the rate that the machine
    can serve. The long prompt has ``long_tokens``."""

    long_tokens: int = 1900
    every_s: float | None = None
    chat_tokens: tuple[int, int] = (32, 96)
    out: tuple[int, int] = (16, 48)

    def chats(self, seed: int, vocabulary: int, every_s: float) -> list[Request]:
        rng = random.Random(seed)
        return [
            Request(
                (i + rng.random()) * every_s,
                draw(rng, rng.randint(*self.chat_tokens), vocabulary),
                rng.randint(*self.out),
            )
            for i in range(CHATS)
        ]

    def long(self, seed: int, vocabulary: int, every_s: float) -> Request:
        return Request(AFTER * every_s, draw(random.Random(-seed), self.long_tokens, vocabulary), 8)


def draw(rng: random.Random, count: int, vocabulary: int) -> list[int]:
    return [rng.randrange(17, vocabulary) for _ in range(count)]


async def replay(engine: EngineClient, requests: Sequence[Request]) -> list[Reply]:
    """Each at its moment, whatever became of the others."""
    began = asyncio.get_running_loop().time()

    async def one(request: Request) -> Reply:
        await asyncio.sleep(max(0.0, began + request.at - asyncio.get_running_loop().time()))
        return await ask(engine, request.prompt, request.out)

    return list(await asyncio.gather(*map(one, requests)))


async def half_rate(engine: EngineClient, workload: Workload, vocabulary: int) -> float:
    """Seconds between chats at half the rate at which a burst of them is served."""
    replies = await replay(engine, workload.chats(-1, vocabulary, 0.0))
    return 2 * (max(reply.last for reply in replies) - min(reply.sent for reply in replies)) / CHATS


async def measure(config: EngineConfig, workload: Workload, rounds: int) -> dict[str, Any]:
    without: list[float] = []
    beside: list[float] = []
    long_alone: list[float] = []
    long_among: list[float] = []
    async with running(config) as engine:
        vocabulary = (await engine.info()).vocabulary
        await replay(engine, workload.chats(0, vocabulary, 0.0)[:4])
        every_s = workload.every_s
        if every_s is None:
            every_s = await half_rate(engine, workload, vocabulary)
        for number in range(1, rounds + 1):
            chats = workload.chats(number, vocabulary, every_s)
            long = workload.long(number, vocabulary, every_s)
            without.extend(reply.ttft for reply in await replay(engine, chats))
            *answered, last = await replay(engine, [*chats, long])
            beside.extend(reply.ttft for reply in answered)
            long_among.append(last.ttft)
            long_alone.append((await ask(engine, long.prompt, long.out)).ttft)
    return {
        "benchmark": "head_of_line",
        "chats": CHATS,
        "every_s": round(every_s, 3),
        "long_prompt_tokens": workload.long_tokens,
        "rounds": rounds,
        "ttft_p50_ms_without": round(1e3 * quantile(without, 0.5), 1),
        "ttft_p95_ms_without": round(1e3 * quantile(without, 0.95), 1),
        "ttft_p50_ms_with": round(1e3 * quantile(beside, 0.5), 1),
        "ttft_p95_ms_with": round(1e3 * quantile(beside, 0.95), 1),
        "p95_ratio": round(quantile(beside, 0.95) / quantile(without, 0.95), 3),
        "p50_ratio": round(quantile(beside, 0.5) / quantile(without, 0.5), 3),
        "long_ttft_ratio": round(quantile(long_among, 0.5) / quantile(long_alone, 0.5), 2),
        "long_ttft_ms_alone": round(1e3 * quantile(long_alone, 0.5), 1),
    }


def main() -> None:
    parser = parser_of(__doc__)
    add_base_option(parser)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--every", type=float, default=None, help="seconds between chats")
    options = parser.parse_args()
    with chosen_base(options) as (base_dir, scratch):
        config = engine_config(base_dir, scratch, tiny=options.tiny)
        workload = Workload(900 if options.tiny else 1900, options.every)
        result = asyncio.run(measure(config, workload, options.rounds))
    show(
        f"20 chats, one every {result['every_s']} s, and a prompt of {workload.long_tokens} tokens among them",
        ("", "TTFT p50 ms", "of without", "TTFT p95 ms", "of without"),
        [
            ("without", result["ttft_p50_ms_without"], 1.0, result["ttft_p95_ms_without"], 1.0),
            ("with", result["ttft_p50_ms_with"], result["p50_ratio"], result["ttft_p95_ms_with"], result["p95_ratio"]),
        ],
    )
    print(f"the long one's own TTFT: {result['long_ttft_ratio']} times what it is alone")
    keep(result, options.json)


if __name__ == "__main__":
    main()
