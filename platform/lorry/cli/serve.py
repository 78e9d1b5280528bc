"""``lorry serve``: the platform on this machine until a signal comes."""

from __future__ import annotations

import argparse
import asyncio
import signal
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from lorry import logs
from lorry.cli.demo.run import demo_home
from lorry.cli.elsewhere import Elsewhere, tls_of
from lorry.cli.homes import Home
from lorry.cli.model import prepare_smollm2, rich_progress
from lorry.cli.platform import Platform, Settings
from lorry.config import (
    HTTP_PORT,
    WEB_PORT,
    GatewayConfig,
    MemoryConfig,
    OpsConfig,
    RestartConfig,
    SchedulerConfig,
    machine_memory,
    usable_cores,
)
from lorry.engine.gpu.card import Card, look
from lorry.engine.gpu.settings import derive_for_card
from lorry.engine.settings import EngineSettings, ModelNumbers, derive
from lorry.engine.weight_type import type_here
from lorry.errors import FailedPrecondition
from lorry.gateway.observe import trace_config
from lorry.loops import settle
from lorry_admin.web import WebConfig

_HOST_DEVICES = ("cpu", "interpreter")
"""Are settings of a CPU's."""


async def serve(options: argparse.Namespace, home: Path) -> int:
    """0 after a signal. An engine that ends by itself is started again meanwhile."""
    console = Console()
    logs.set_up(options.log_format, options.log_level)
    own = demo_home(home) if options.demo else Home(home)
    if options.demo and not own.keys.exists():
        raise FailedPrecondition("--demo: there is no demo to serve yet; run `make demo` first")
    # First of all: whatever else there is to do is in vain where there is no such device, file or URL.
    elsewhere = Elsewhere.of(options)
    trace_config(options.trace_endpoint, options.trace_ratio)
    card = None if options.device in _HOST_DEVICES else await asyncio.to_thread(look, options.device)
    base_dir = options.base
    if base_dir is None:
        with rich_progress() as progress:
            base_dir = await asyncio.to_thread(prepare_smollm2, home, progress)
    settings = elsewhere.add_to(await asyncio.to_thread(settings_of, options, own, base_dir, card))

    def say(line: str) -> None:
        console.print(line, highlight=False, soft_wrap=True, markup=False)

    platform = Platform(settings, say, lambda key: say(f"Admin API key, shown this once: {key}"))
    stop = asyncio.Event()

    def signalled() -> None:
        if stop.is_set():
            platform.hurry()
        stop.set()

    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, signalled)
    async with platform:
        info = platform.info
        digests = f"base       sha256 {info.base}\ntokenizer  sha256 {info.tokenizer_sha256}"
        console.print(digests, highlight=False, soft_wrap=True)
        settle()
        console.print("ready; Ctrl-C stops it", highlight=False)
        await stop.wait()
        console.print("draining; once more ends it at once", highlight=False)
    return 0


def settings_of(options: argparse.Namespace, home: Home, base_dir: Path, card: Card | None) -> Settings:
    """Derived from base, budget, cores and ``card``, but for what the operator chose."""
    kind = type_here(base_dir, options.dtype, gpu=card is not None)
    options = argparse.Namespace(**{**vars(options), "dtype": kind.value})
    settings = Settings(
        home,
        base_dir,
        gateway=replace(
            GatewayConfig(),
            host=options.host,
            port=options.port,
            http_host=options.http_host,
            http_port=_http_port(options),
            staleness=options.staleness,
            staleness_seconds=options.staleness_seconds,
            metrics_tenants=options.metrics_tenants,
            tls=tls_of(options),
            max_message_bytes=options.max_message,
            keepalive_seconds=options.keepalive,
            connection_age_seconds=options.connection_age,
            traces=trace_config(options.trace_endpoint, options.trace_ratio),
        ),
        dtype=options.dtype,
        device=options.device,
        ops=OpsConfig(options.ops_host, options.ops_port, options.router_adapters),
        web=_web(options),
        log_format=options.log_format,
        log_level=options.log_level,
    )
    if card is None:
        chosen, memory = chosen_settings(options, base_dir), _memory(options)
        start_s, slots = options.start_s or settings.restarts.start_s, options.max_slots or memory.max_slots
        settings = replace(settings, choices=(kind, *chosen.choices), host_bytes=options.host_tier)
    else:
        memory = _memory(options, auto=0)
        given = {
            **_given(options),
            "max_slots": options.max_slots,
            "host_bytes": options.host_tier,
            "start_s": options.start_s,
        }
        numbers = ModelNumbers.read(base_dir, options.dtype)
        context, cores = _scheduler(options).context_tokens, usable_cores()
        found = derive_for_card(numbers, memory, card, cores, machine_memory(), context, options.dtype, given)
        chosen, start_s, slots = found.engine, found.start_s.value, found.max_slots.value
        settings = replace(
            settings, choices=(kind, *found.choices), summary=str(found), host_bytes=found.host_bytes.value
        )
    return replace(
        settings,
        memory=replace(chosen.memory(memory), max_slots=slots),
        scheduler=chosen.scheduler(_scheduler(options)),
        threads=chosen.threads.value,
        restarts=RestartConfig(start_s=start_s),
    )


def chosen_settings(options: argparse.Namespace, base_dir: Path) -> EngineSettings:
    """Of a CPU: derived from base, budget and cores, but for what the operator chose."""
    return derive(
        ModelNumbers.read(base_dir, options.dtype),
        _memory(options),
        usable_cores(),
        _scheduler(options).context_tokens,
        _given(options),
    )


def _given(options: argparse.Namespace) -> dict[str, int | None]:
    return {
        "max_sequences": options.max_sequences,
        "token_budget": options.token_budget,
        "prefill_chunk_tokens": options.prefill_chunk_tokens,
        "page_tokens": options.page_tokens,
        "max_rank": options.max_rank,
        "threads": options.threads,
    }


def _web(options: argparse.Namespace) -> WebConfig | None:
    """None serves none."""
    if options.no_web:
        return None
    default = WEB_PORT if options.port else 0
    port = default if options.web_port is None else options.web_port
    return WebConfig(host=options.web_host, port=port, public_url=options.web_url)


def _http_port(options: argparse.Namespace) -> int | None:
    """None serves none."""
    if options.no_http:
        return None
    default = HTTP_PORT if options.port else 0
    return default if options.http_port is None else int(options.http_port)


def _memory(options: argparse.Namespace, auto: int | None = None) -> MemoryConfig:
    mebibytes = options.memory_budget_mb
    budget = options.memory_budget if mebibytes is None else mebibytes << 20
    if budget is None:
        budget = MemoryConfig().budget_bytes if auto is None else auto
    return MemoryConfig(
        budget_bytes=budget,
        adapter_fraction=options.adapter_fraction,
        kv_fraction=options.kv_fraction,
        extras_fraction=options.extras_fraction,
    )


def _scheduler(options: argparse.Namespace) -> SchedulerConfig:
    return SchedulerConfig(context_tokens=options.context_tokens)


__all__ = ["chosen_settings", "serve", "settings_of"]
