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
from lorry.config import GatewayConfig, MemoryConfig, OpsConfig, SchedulerConfig, usable_cores
from lorry.engine.settings import EngineSettings, ModelNumbers, derive
from lorry.errors import FailedPrecondition


async def serve(options: argparse.Namespace, home: Path) -> int:
    """0 after a signal. An engine that ends by itself is started again meanwhile."""
    console = Console()
    own = demo_home(home) if options.demo else Home(home)
    if options.demo and not own.keys.exists():
        raise FailedPrecondition("--demo: there is no demo to serve yet; run `make demo` first")
    base_dir = options.base
    if base_dir is None:
        with rich_progress() as progress:
            base_dir = await asyncio.to_thread(prepare_smollm2, home, progress)
    chosen = await asyncio.to_thread(chosen_settings, options, base_dir)
    settings = Settings(
        own,
        base_dir,
        gateway=replace(GatewayConfig(), host=options.host, port=options.port),
        memory=chosen.memory(_memory(options)),
        scheduler=chosen.scheduler(_scheduler(options)),
        dtype=options.dtype,
        device=options.device,
        threads=chosen.threads.value,
        ops=OpsConfig(options.ops_host, options.ops_port),
        choices=chosen.choices,
    )
    platform = Platform(settings, lambda line: console.print(line, highlight=False, soft_wrap=True))
    stop = asyncio.Event()

    def signalled() -> None:
        if stop.is_set():
            platform.hurry()
        stop.set()

    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, signalled)
    async with platform:
        if platform.admin_key is not None:
            console.print(f"Admin API key, shown this once: {platform.admin_key}", highlight=False, soft_wrap=True)
        info = platform.info
        digests = f"base       sha256 {info.base}\ntokenizer  sha256 {info.tokenizer_sha256}"
        console.print(digests, highlight=False, soft_wrap=True)
        console.print("ready; Ctrl-C stops it", highlight=False)
        await stop.wait()
        console.print("draining; once more ends it at once", highlight=False)
    return 0


def chosen_settings(options: argparse.Namespace, base_dir: Path) -> EngineSettings:
    """Derived from base, budget and cores, but for what the operator chose."""
    return derive(
        ModelNumbers.read(base_dir, options.dtype),
        _memory(options),
        usable_cores(),
        _scheduler(options).context_tokens,
        {
            "max_sequences": options.max_sequences,
            "token_budget": options.token_budget,
            "prefill_chunk_tokens": options.prefill_chunk_tokens,
            "page_tokens": options.page_tokens,
            "max_rank": options.max_rank,
            "threads": options.threads,
        },
    )


def _memory(options: argparse.Namespace) -> MemoryConfig:
    mebibytes = options.memory_budget_mb
    return MemoryConfig(
        budget_bytes=options.memory_budget if mebibytes is None else mebibytes << 20,
        adapter_fraction=options.adapter_fraction,
        kv_fraction=options.kv_fraction,
        extras_fraction=options.extras_fraction,
    )


def _scheduler(options: argparse.Namespace) -> SchedulerConfig:
    return SchedulerConfig(context_tokens=options.context_tokens)


__all__ = ["chosen_settings", "serve"]
