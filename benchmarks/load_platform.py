"""A whole platform as a process of its own: ``python load_platform.py`` with one line of JSON on its standard input.

The line: ``home``, ``base``, ``tiny``, and ``endpoint``: of a collector of traces, or null for a platform that nobody
watches, whose log has errors alone. Says where it is in JSON when it serves; drains and ends when the input closes.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path

from lorry import logs
from lorry.cli.homes import Home
from lorry.cli.platform import Platform, Settings
from lorry.config import GatewayConfig, MemoryConfig, OpsConfig, SchedulerConfig, StoreConfig, TraceConfig
from lorry.loops import run


def settings(home: Path, base_dir: Path, tiny: bool, endpoint: str | None) -> Settings:
    """The defaults; for the tiny base as small as that is."""
    made = Settings(
        Home(home),
        base_dir,
        gateway=GatewayConfig(port=0, traces=None if endpoint is None else TraceConfig(endpoint)),
        store=StoreConfig(f"file://{home / 'objects'}"),
        ops=OpsConfig(port=0),
    )
    if not tiny:
        return made
    memory = MemoryConfig(budget_bytes=32 << 20, page_tokens=16, max_slots=4, max_rank=64)
    scheduler = SchedulerConfig(token_budget=64, prefill_chunk_tokens=64, context_tokens=1024)
    return replace(made, memory=memory, scheduler=scheduler, dtype="float32", threads=1)


async def serve(chosen: Settings) -> None:
    async with Platform(chosen) as platform:
        assert platform.ops is not None
        found = {
            "address": platform.address,
            "ops": platform.ops.address,
            "admin_key": platform.admin_key,
            "engine": platform.engine.pid,
            "base": platform.info.base,
            "tokenizer": platform.info.tokenizer_sha256,
            "context": platform.info.context_tokens,
            "vocabulary": platform.info.vocabulary,
        }
        print(json.dumps(found), flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            pass


def main() -> None:
    told = json.loads(sys.stdin.readline())
    home = Path(told["home"])
    (home / "objects").mkdir(parents=True, exist_ok=True)
    with open(home / "gateway.log", "a", encoding="utf-8") as log:
        logs.set_up("json", "error" if told["endpoint"] is None else "info", log)
        run(serve(settings(home, Path(told["base"]), told["tiny"], told["endpoint"])))


if __name__ == "__main__":
    main()
