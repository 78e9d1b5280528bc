"""The cost of being watched: CPU seconds a token with metrics scraped, traces sent and a line of log for each request,
against none of it.

Each run is a platform of its own on one home, gateway and engine: started, warmed up, then so many clients at once
with the same requests as every other run. What is counted is the processor time that both processes took from the first
request until all traces were sent, over the tokens of the answers; not the wall clock's, so that what else the machine
does weighs little. Each pair has a watched and an unwatched run, by turns the one and the other first. The ratio is the
geometric mean over the pairs, with the 95% interval of 10,000 bootstrap samples of pairs.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # no stubs installed
from bench_adapters import write_random_adapters
from engine_runs import add_base_option, chosen_base
from load_world import Child
from reporting import keep, parser_of, show

from lorry.client import AsyncClient
from lorry.client.admin import AdminClient

ROOT = str(Path(__file__).resolve().parents[1])
BASE, TENANT = "bench-base", "bench"
EXPECTED_AT_MOST = 1.05
SCRAPE_S = 1.0
"""Far more often than Prometheus does by default."""
SETTLE_S = 1.5
"""Longer than what a sender of traces waits for a batch."""
_SAMPLES = 10_000
_START_S = 180


@dataclass(frozen=True, slots=True)
class Size:
    pairs: int
    at_once: int
    rounds: int
    prompt_tokens: int
    output_tokens: int
    adapters: int

    @property
    def requests(self) -> int:
        return self.at_once * self.rounds


FULL = Size(pairs=10, at_once=8, rounds=4, prompt_tokens=64, output_tokens=64, adapters=4)
SMALL = Size(pairs=2, at_once=2, rounds=2, prompt_tokens=8, output_tokens=8, adapters=1)


@dataclass(frozen=True, slots=True)
class Run:
    """CPU seconds of one run's requests."""

    pair: int
    watched: bool
    tokens: int
    gateway_s: float
    engine_s: float
    traces: int
    scrapes: int

    @property
    def per_token_s(self) -> float:
        return (self.gateway_s + self.engine_s) / self.tokens


@dataclass(frozen=True, slots=True)
class Place:
    """What all runs are on."""

    home: Path
    base_dir: Path
    tiny: bool
    endpoint: str


class Served:
    """A platform that runs."""

    def __init__(self, place: Place, watched: bool) -> None:
        self._child = Child("platform")
        self._place, self._watched = place, watched
        self.found: dict[str, Any] = {}

    async def __aenter__(self) -> Served:
        await self._child.start()
        endpoint = self._place.endpoint if self._watched else None
        wanted = {
            "home": str(self._place.home),
            "base": str(self._place.base_dir),
            "tiny": self._place.tiny,
            "endpoint": endpoint,
        }
        self._child.write(json.dumps(wanted))
        async with asyncio.timeout(_START_S):
            self.found = await self._child.read()
        self._engine = psutil.Process(self.found["engine"])
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self._child.end()
        finally:
            await self._child.kill()

    def cpu_seconds(self) -> tuple[float, float]:
        """Of the gateway's process and of the engine's."""
        times = self._engine.cpu_times()
        return self._child.cpu_seconds(), float(times.user + times.system)


async def fill(place: Place, folders: Sequence[Path]) -> tuple[str, list[str]]:
    """A key and the names that it may use, for every run."""
    async with Served(place, watched=False) as served:
        found = served.found
        admin = AdminClient(found["address"], found["admin_key"])
        config = await asyncio.to_thread((place.base_dir / "config.json").read_text)
        await admin.create_base(BASE, found["base"], found["tokenizer"], found["context"], config)
        await admin.create_tenant(TENANT, "Benchmark")
        await admin.grant(TENANT, f"models/{BASE}")
        key = (await admin.create_key(TENANT, "bench", "owner")).text
        names = []
        for number, folder in enumerate(folders):
            await admin.create_adapter(TENANT, f"a{number}")
            names.append(f"tenants/{TENANT}/adapters/a{number}")
            await admin.push(names[-1], folder, f"models/{BASE}")
        await admin.close()
        return key, names


async def load(served: Served, key: str, names: Sequence[str], size: Size, rounds: int) -> int:
    """Tokens of all answers. The same requests each time."""
    draw = random.Random(7)
    vocabulary = served.found["vocabulary"]
    client = AsyncClient(served.found["address"], key)

    async def one(number: int) -> int:
        prompt = [draw.randrange(17, vocabulary) for _ in range(size.prompt_tokens)]
        tokens = 0
        stream = client.stream(
            names[number % len(names)], token_ids=prompt, temperature=0.0, max_tokens=size.output_tokens,
            ignore_eos=True, want_token_ids=True,
        )  # fmt: skip
        async for delta in stream:
            tokens += len(delta.token_ids)
        return tokens

    total = 0
    for _ in range(rounds):
        total += sum(await asyncio.gather(*(one(number) for number in range(size.at_once))))
    await client.close()
    return total


async def scraping(address: str, scrapes: list[int]) -> None:
    """Reads the metrics until it is cancelled."""

    def read() -> None:
        with urllib.request.urlopen(f"{address}/metrics", timeout=10) as answer:
            assert b"lorry_gateway_requests_total" in answer.read()

    while True:
        await asyncio.to_thread(read)
        scrapes.append(1)
        await asyncio.sleep(SCRAPE_S)


async def run_once(
    place: Place, collector: Any, key: str, names: Sequence[str], size: Size, pair: int, watched: bool
) -> Run:
    async with Served(place, watched) as served:
        await load(served, key, names, size, 1)
        await asyncio.sleep(SETTLE_S)
        collector.requests.clear()
        before = served.cpu_seconds()
        scrapes: list[int] = []
        scraper = asyncio.create_task(scraping(served.found["ops"], scrapes)) if watched else None
        tokens = await load(served, key, names, size, size.rounds)
        await asyncio.sleep(SETTLE_S)
        if scraper is not None:
            scraper.cancel()
            with suppress(asyncio.CancelledError):
                await scraper
        after = served.cpu_seconds()
        traces = len(await asyncio.to_thread(collector.traces, size.requests)) if watched else len(collector.spans)
        gateway_s, engine_s = (late - early for late, early in zip(after, before, strict=True))
    assert tokens == size.requests * size.output_tokens, f"{tokens} tokens of {size.requests} requests"
    assert traces == (size.requests if watched else 0), f"{traces} traces of {size.requests} requests"
    return Run(pair, watched, tokens, gateway_s, engine_s, traces, len(scrapes))


def interval(ratios: Sequence[float], samples: int = _SAMPLES) -> dict[str, float]:
    """The geometric mean, and the bootstrap's 95% interval of it."""
    logs, draw = [math.log(ratio) for ratio in ratios], random.Random(0)
    means = sorted(sum(draw.choices(logs, k=len(logs))) / len(logs) for _ in range(samples))
    low, high = means[int(0.025 * samples)], means[min(samples - 1, int(0.975 * samples))]
    return {"ratio": math.exp(sum(logs) / len(logs)), "low": math.exp(low), "high": math.exp(high)}


def summary(runs: Sequence[Run], size: Size) -> dict[str, Any]:
    pairs = [
        tuple(next(run for run in runs if (run.pair, run.watched) == (pair, watched)) for watched in (True, False))
        for pair in range(size.pairs)
    ]
    of_all = [on.per_token_s / off.per_token_s for on, off in pairs]
    of_gateway = [on.gateway_s / off.gateway_s for on, off in pairs]
    return {
        **asdict(size),
        "expected_at_most": EXPECTED_AT_MOST,
        "scrape_every_s": SCRAPE_S,
        "cpu_per_token": interval(of_all),
        "gateway_alone": interval(of_gateway),
        "gateway_us_a_request_more": 1e6
        * sum(on.gateway_s - off.gateway_s for on, off in pairs)
        / (size.pairs * size.requests),
        "runs": [asdict(run) | {"cpu_ms_a_token": 1000 * run.per_token_s} for run in runs],
    }


async def measure(base_dir: Path, scratch: Path, size: Size, tiny: bool) -> dict[str, Any]:
    if ROOT not in sys.path:
        sys.path.append(ROOT)
    from tests.support.collector import collecting

    folders = write_random_adapters(scratch / "adapters", base_dir, size.adapters)
    runs: list[Run] = []
    with collecting() as collector:
        place = Place(scratch / "home", base_dir, tiny, collector.endpoint)
        key, names = await fill(place, folders)
        for pair in range(size.pairs):
            for watched in (pair % 2 == 0, pair % 2 == 1):
                run = await run_once(place, collector, key, names, size, pair, watched)
                runs.append(run)
                what = f"watched, {run.scrapes} scrapes, {run.traces} traces" if watched else "unwatched"
                print(
                    f"pair {pair + 1} of {size.pairs}: {1000 * run.per_token_s:.3f} ms a token, gateway "
                    f"{run.gateway_s:.2f} s, engine {run.engine_s:.2f} s; {what}",
                    flush=True,
                )
    return summary(runs, size)


def main() -> None:
    parser = parser_of(__doc__)
    add_base_option(parser)
    parser.add_argument("--pairs", type=int, default=FULL.pairs)
    parser.add_argument("--rounds", type=int, default=FULL.rounds, help="of 8 requests at once, each 64 tokens")
    options = parser.parse_args()
    size = Size(**(asdict(FULL) | {"pairs": options.pairs, "rounds": options.rounds}))
    with chosen_base(options) as (base_dir, scratch):
        result = asyncio.run(measure(base_dir, scratch, size, options.tiny))
    result["base"] = "tiny" if options.tiny else "SmolLM2-135M-Instruct"
    rows = [[name, *result[name].values()] for name in ("cpu_per_token", "gateway_alone")]
    show("watched / unwatched, CPU seconds", ["", "ratio", "95% from", "to"], rows)
    print(f"the gateway took {result['gateway_us_a_request_more']:.0f} us more of a request")
    keep(result, options.json)


if __name__ == "__main__":
    main()
