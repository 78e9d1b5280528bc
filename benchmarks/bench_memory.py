"""What the engine's process holds, from outside: resident memory of a fresh process, under a load that fills the budget
and under adapters that come and go.

    python benchmarks/bench_memory.py [--tiny] [--json PATH]

``load``: growth from ready to the end of a mixed load that fills the budget (KV pages stay with their memory until
something else wants the bytes). Host images of adapters are beside the budget, so their tier is small here, and its
bound is a column of its own. ``loads``: more adapters than slots, one request after the other, each on an adapter that
is not on the device; resident memory after the 50th and after the 200th load.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]  # no stubs installed
from bench_adapters import write_random_adapters
from engine_runs import add_base_option, ask, chosen_base, engine_config, publish
from reporting import keep, parser_of, show

from lorry.adapters.manifest import AdapterRef
from lorry.config import EngineConfig
from lorry.engine.contract import EngineClient
from lorry.engine.launch import EngineProcess
from lorry.engine.transport_grpc import GrpcEngineClient

MB = 1 << 20
SETTLE_S = 0.3
"""Longer than an idle engine waits before it trims its heap."""


@dataclass(frozen=True, slots=True)
class Setting:
    """``adapters`` of ``rank`` over ``slots``. The load is ``requests`` prompts of ``prompt_tokens`` (from, to)."""

    budget_bytes: int
    host_bytes: int
    slots: int
    adapters: int
    rank: int
    requests: int
    prompt_tokens: tuple[int, int]
    loads: tuple[int, int] = (50, 200)


SMOLLM2 = Setting(512 * MB, 24 * MB, 6, 12, 16, 72, (100, 400))
TINY = Setting(8 * MB, 4 * MB, 4, 8, 64, 80, (100, 500))


@dataclass(frozen=True, slots=True)
class Engine:
    client: EngineClient
    process: psutil.Process

    async def resident(self) -> int:
        """Bytes, once the last step's leftovers are gone."""
        await asyncio.sleep(SETTLE_S)
        return int(self.process.memory_info().rss)


def config_of(base_dir: Path, scratch: Path, setting: Setting, *, tiny: bool) -> EngineConfig:
    config = engine_config(base_dir, scratch, tiny=tiny)
    memory = replace(config.memory, budget_bytes=setting.budget_bytes, max_slots=setting.slots, max_rank=setting.rank)
    return replace(config, memory=memory, tiers=replace(config.tiers, host_bytes=setting.host_bytes))


@asynccontextmanager
async def fresh_process(config: EngineConfig, scratch: Path) -> AsyncIterator[Engine]:
    client = GrpcEngineClient(f"unix:{scratch / 'engine.sock'}")
    process = EngineProcess(config, client, scratch / "engine.log")
    try:
        await process.start()
        assert process.pid is not None
        yield Engine(client, psutil.Process(process.pid))
    finally:
        await client.close()
        await process.stop(10.0)


async def under_load(engine: Engine, refs: list[AdapterRef], setting: Setting) -> dict[str, Any]:
    """The load comes twice, with other prompts: once to fill the budget, once to show that nothing grows any more."""
    vocabulary = (await engine.client.info()).vocabulary
    rng = random.Random(7)
    ready = peak = await engine.resident()
    ends = []
    for _ in range(2):
        waiting = iter(range(setting.requests))

        async def reader(waiting: Any = waiting) -> None:
            nonlocal peak
            for number in waiting:
                prompt = [rng.randrange(17, vocabulary) for _ in range(rng.randint(*setting.prompt_tokens))]
                ref = refs[number % len(refs)] if number % 3 else None
                await ask(engine.client, prompt, rng.randint(1, 16), ref, salt=b"memory", tenant=f"t{number % 3}")
                peak = max(peak, int(engine.process.memory_info().rss))

        await asyncio.gather(*(reader() for _ in range(12)))
        ends.append(await engine.resident())
    ledger = (await engine.client.state())["scheduler"]
    return {
        "ready_mb": round(ready / MB, 1),
        "growth_mb": round((ends[-1] - ready) / MB, 1),
        "growth_after_first_half_mb": round((ends[0] - ready) / MB, 1),
        "peak_growth_mb": round((peak - ready) / MB, 1),
        "pages": ledger["pages"],
        "chunks": ledger["chunks"],
    }


async def under_loads(engine: Engine, refs: list[AdapterRef], setting: Setting) -> dict[str, Any]:
    """In turn over more adapters than there are slots, so every request loads one and another has left for it."""
    resident: dict[str, float] = {}
    number = 0
    for goal in setting.loads:
        while (await engine.client.state()).get("loads", 0) < goal:
            await ask(engine.client, [20 + number % 100] * 24, 2, refs[number % len(refs)])
            number += 1
        resident[f"after_{goal}_mb"] = round(await engine.resident() / MB, 1)
    first, last = (resident[f"after_{goal}_mb"] for goal in setting.loads)
    return {"requests": number, **resident, "difference_mb": round(last - first, 1)}


async def measure(base_dir: Path, scratch: Path, setting: Setting, *, tiny: bool) -> dict[str, Any]:
    config = config_of(base_dir, scratch, setting, tiny=tiny)
    folders = write_random_adapters(scratch / "adapters", base_dir, setting.adapters, rank=setting.rank)
    refs = [publish(config, folder) for folder in folders]
    async with fresh_process(config, scratch) as engine:
        load = await under_load(engine, refs, setting)
    async with fresh_process(config, scratch) as engine:
        loads = await under_loads(engine, refs, setting)
    return {
        "benchmark": "memory",
        "budget_mb": round(setting.budget_bytes / MB, 1),
        "host_images_mb": round(setting.host_bytes / MB, 1),
        "load": load,
        "loads": loads,
    }


def main() -> None:
    parser = parser_of(__doc__)
    add_base_option(parser)
    options = parser.parse_args()
    with chosen_base(options) as (base_dir, scratch):
        setting = TINY if options.tiny else SMOLLM2
        result = asyncio.run(measure(base_dir, scratch, setting, tiny=options.tiny))
    load, loads = result["load"], result["loads"]
    show(
        "resident memory of the engine's process, MB",
        ("budget", "host images", "ready", "growth", "peak growth", "after 50 loads", "after 200", "difference"),
        [
            (
                result["budget_mb"],
                result["host_images_mb"],
                load["ready_mb"],
                load["growth_mb"],
                load["peak_growth_mb"],
                *(loads[f"after_{goal}_mb"] for goal in setting.loads),
                loads["difference_mb"],
            )
        ],
    )
    keep(result, options.json)


if __name__ == "__main__":
    main()
