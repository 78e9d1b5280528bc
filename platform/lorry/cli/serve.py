"""``lorry serve``: the platform on this machine until a signal comes."""

from __future__ import annotations

import argparse
import asyncio
import signal
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from lorry.cli.demo.run import demo_home
from lorry.cli.homes import Home
from lorry.cli.model import prepare_smollm2, rich_progress
from lorry.cli.platform import Platform, Settings
from lorry.config import GatewayConfig, MemoryConfig
from lorry.errors import FailedPrecondition


async def serve(options: argparse.Namespace, home: Path) -> int:
    """0 after a signal, 1 where the engine ended by itself."""
    console = Console()
    own = demo_home(home) if options.demo else Home(home)
    if options.demo and not own.keys.exists():
        raise FailedPrecondition("--demo: there is no demo to serve yet; run `make demo` first")
    base_dir = options.base
    if base_dir is None:
        with rich_progress() as progress:
            base_dir = await asyncio.to_thread(prepare_smollm2, home, progress)
    memory = MemoryConfig()
    if options.memory_budget_mb is not None:
        memory = replace(memory, budget_bytes=options.memory_budget_mb << 20)
    settings = Settings(
        own,
        base_dir,
        gateway=replace(GatewayConfig(), host=options.host, port=options.port),
        memory=memory,
        dtype=options.dtype,
    )
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    async with Platform(settings, lambda line: console.print(line, highlight=False)) as platform:
        if platform.admin_key is not None:
            console.print(f"Admin API key, shown this once: {platform.admin_key}", highlight=False, soft_wrap=True)
        info = platform.info
        console.print(f"base       sha256 {info.base}\ntokenizer  sha256 {info.tokenizer_sha256}", highlight=False)
        console.print("ready; Ctrl-C stops it", highlight=False)
        gone = asyncio.create_task(platform.engine_gone())
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait([gone, stopped], return_when=asyncio.FIRST_COMPLETED)
        failed = gone.done()
        if failed:
            console.print(f"the engine ended with {gone.result()}; see {own.logs / 'engine.log'}")
        for task in (gone, stopped):
            task.cancel()
        await asyncio.gather(gone, stopped, return_exceptions=True)
        console.print("draining")
    return 1 if failed else 0


__all__ = ["serve"]
