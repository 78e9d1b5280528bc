"""Lorry beside transformers + peft, same weights, same work, same run.

    python benchmarks/bench_serving.py [--rounds 3] [--out benchmarks/results/serving.json]

The work of a cell: N requests at once, each 128 random prompt ids in and 64 greedy tokens out with end-of-text
off, request i on adapter i mod M (rank 16, seven targets; M = 0: all on the base). Lorry is the whole platform:
gateway over TCP, engine in its own process, adapters out of S3, token by token to an async client. peft is
static batches with `adapter_names`. Cells of both are interleaved, a round at a time; medians over the rounds.
Use ratios: the machine is whatever it is.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench_adapters import write_random_adapters
from peft_baseline import PeftBaseline, quantile
from rich.console import Console
from rich.table import Table

from lorry.cli.homes import Home
from lorry.cli.model import prepare_smollm2
from lorry.cli.platform import Platform, Settings
from lorry.client import AsyncClient
from lorry.client.admin import AdminClient
from lorry.config import GatewayConfig, lorry_home

BASE, TENANT = "bench-base", "bench"
PROMPT_TOKENS, OUTPUT_TOKENS = 128, 64
ADAPTERS, AT_ONCE = (0, 1, 4, 8), (1, 8, 16)


@dataclass(frozen=True, slots=True)
class Sample:
    """One cell of one round. Milliseconds."""

    tokens_per_second: float
    ttft_p50: float
    ttft_p95: float
    itl_p50: float
    itl_p95: float


def median(samples: Sequence[Sample]) -> Sample:
    return Sample(*(statistics.median(getattr(s, name) for s in samples) for name in Sample.__slots__))


async def lorry_cell(client: AsyncClient, models: Sequence[str], at_once: int, vocabulary: int, seed: int) -> Sample:
    rng = random.Random(seed)
    prompts = [[rng.randrange(17, vocabulary) for _ in range(PROMPT_TOKENS)] for _ in range(at_once)]

    async def one(prompt: list[int], model: str) -> list[float]:
        stream = client.stream(
            model, token_ids=prompt, temperature=0.0, max_tokens=OUTPUT_TOKENS, ignore_eos=True, flush=True,
            want_token_ids=True,
        )  # fmt: skip
        stamps = []
        async for delta in stream:
            stamps.extend([time.perf_counter()] * len(delta.token_ids))
        assert len(stamps) == OUTPUT_TOKENS
        return stamps

    began = time.perf_counter()
    runs = await asyncio.gather(*(one(p, models[i % len(models)]) for i, p in enumerate(prompts)))
    seconds = time.perf_counter() - began
    firsts = [run[0] - began for run in runs]
    gaps = [later - earlier for run in runs for earlier, later in pairwise(run)]
    return Sample(
        at_once * OUTPUT_TOKENS / seconds,
        *(1e3 * quantile(values, f) for values in (firsts, gaps) for f in (0.5, 0.95)),
    )


def peft_cell(baseline: PeftBaseline, at_once: int, seed: int) -> Sample:
    result = baseline.measure(at_once, prompt_tokens=PROMPT_TOKENS, output_tokens=OUTPUT_TOKENS, batches=1, seed=seed)
    return Sample(
        result.tokens_per_second, result.ttft_p50_ms, result.ttft_p95_ms, result.itl_p50_ms, result.itl_p95_ms
    )


async def fill(platform: Platform, base_dir: Path, folders: Sequence[Path]) -> tuple[str, list[str]]:
    """The tenant's key and the adapters' names."""
    assert platform.admin_key is not None
    admin = AdminClient(platform.address, platform.admin_key)
    try:
        info = platform.info
        config = await asyncio.to_thread((base_dir / "config.json").read_text)
        await admin.create_base(BASE, info.base, info.tokenizer_sha256, info.context_tokens, config)
        await admin.create_tenant(TENANT, "Benchmark")
        await admin.grant(TENANT, f"models/{BASE}")
        key = (await admin.create_key(TENANT, "bench", "owner")).text
        names = []
        for i, folder in enumerate(folders):
            await admin.create_adapter(TENANT, f"a{i}")
            names.append(f"tenants/{TENANT}/adapters/a{i}")
            await admin.push(names[-1], folder, f"models/{BASE}")
        return key, names
    finally:
        await admin.close()


Cells = dict[tuple[str, int, int], list[Sample]]


async def measure(rounds: int, cells: Sequence[tuple[int, int]], console: Console, with_peft: bool) -> Cells:
    base_dir = prepare_smollm2(lorry_home())
    samples: Cells = {}
    with tempfile.TemporaryDirectory() as scratch:
        folders = write_random_adapters(Path(scratch) / "adapters", base_dir, max(ADAPTERS))
        counts = sorted({m for m, _ in cells})
        baselines = {m: await asyncio.to_thread(PeftBaseline, base_dir, folders[:m]) for m in counts if with_peft}
        settings = Settings(Home(Path(scratch) / "home"), base_dir, gateway=GatewayConfig(port=0))
        async with Platform(settings) as platform:
            key, names = await fill(platform, base_dir, folders)
            client = AsyncClient(platform.address, key)
            vocabulary = platform.info.vocabulary
            models = {m: names[:m] or [f"models/{BASE}"] for m in counts}
            for m in counts:  # adapters onto the device, code paths warm
                await lorry_cell(client, models[m], max(1, m), vocabulary, seed=0)
            for number in range(rounds):
                for m, n in cells:
                    sample = await lorry_cell(client, models[m], n, vocabulary, seed=1 + number)
                    samples.setdefault(("lorry", m, n), []).append(sample)
                    line = f"round {number + 1}  {m} adapters, {n} at once: lorry {sample.tokens_per_second:6.1f}"
                    if with_peft:
                        other = await asyncio.to_thread(peft_cell, baselines[m], n, 1 + number)
                        samples.setdefault(("peft", m, n), []).append(other)
                        line += f", peft {other.tokens_per_second:6.1f} tokens/s"
                    console.print(line, highlight=False)
            await client.close()
    return samples


def report(samples: Cells, rounds: int) -> dict[str, Any]:
    rows = []
    for (system, m, n), found in samples.items():
        if system != "lorry":
            continue
        ours = median(found)
        base = samples.get(("lorry", 0, n))
        theirs = samples.get(("peft", m, n))
        row: dict[str, Any] = {"adapters": m, "at_once": n, "lorry": shown(ours)}
        if base:
            # Round by round, so that what else the machine did falls on both sides.
            ratios = [a.tokens_per_second / b.tokens_per_second for a, b in zip(found, base, strict=True)]
            row["of_base_only"] = round(statistics.median(ratios), 3)
        if theirs:
            row["peft"] = shown(median(theirs))
            ratios = [a.tokens_per_second / b.tokens_per_second for a, b in zip(found, theirs, strict=True)]
            row["times_peft"] = round(statistics.median(ratios), 2)
        rows.append(row)
    return {"rounds": rounds, "prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS, "cells": rows}


def shown(sample: Sample) -> dict[str, float]:
    return {
        name if name == "tokens_per_second" else f"{name}_ms": round(getattr(sample, name), 1)
        for name in Sample.__slots__
    }


def show(result: dict[str, Any], console: Console) -> None:
    table = Table(title="128 tokens in, 64 out; medians; p50/p95 in ms", box=None)
    for name in (
        "adapters", "at once", "tok/s", "of base", "x peft", "TTFT", "ITL", "peft tok/s", "peft TTFT", "peft ITL"
    ):  # fmt: skip
        table.add_column(name, justify="right", no_wrap=True)

    def times(cell: dict[str, float] | None, name: str) -> str:
        return f"{cell[f'{name}_p50_ms']:.0f}/{cell[f'{name}_p95_ms']:.0f}" if cell else "-"

    for row in result["cells"]:
        ours, theirs = row["lorry"], row.get("peft")
        table.add_row(
            str(row["adapters"]),
            str(row["at_once"]),
            f"{ours['tokens_per_second']:.1f}",
            f"{row['of_base_only']:.2f}" if "of_base_only" in row else "-",
            f"{row['times_peft']:.2f}" if "times_peft" in row else "-",
            times(ours, "ttft"),
            times(ours, "itl"),
            f"{theirs['tokens_per_second']:.1f}" if theirs else "-",
            times(theirs, "ttft"),
            times(theirs, "itl"),
        )
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default: %(default)s)")
    parser.add_argument("--adapters", type=int, nargs="+", default=ADAPTERS, help="numbers of adapters")
    parser.add_argument("--at-once", type=int, nargs="+", default=AT_ONCE, help="numbers of concurrent requests")
    parser.add_argument("--no-peft", action="store_true", help="Lorry alone")
    parser.add_argument("--out", type=Path, default=None, help="write the JSON here too")
    options = parser.parse_args()
    console = Console(width=120)
    cells = [(m, n) for m in options.adapters for n in options.at_once]
    samples = asyncio.run(measure(options.rounds, cells, console, not options.no_peft))
    result = report(samples, options.rounds)
    show(result, console)
    text = json.dumps(result, indent=2)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
