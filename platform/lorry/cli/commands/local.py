"""Commands that run the platform here: ``demo``, ``serve``, ``migrate``, ``model``."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from lorry.cli.commands.parsing import Commands, home_of
from lorry.cli.sizes import budget, count, fraction, number, part, port, seconds, size
from lorry.config import HTTP_PORT, GatewayConfig, MemoryConfig, OpsConfig, SchedulerConfig

DTYPES = ("bfloat16", "float16", "float32")
DERIVED = {
    "max-sequences": "most requests in a step",
    "token-budget": "most tokens of a step",
    "prefill-chunk-tokens": "most prompt tokens of one request in a step",
    "page-tokens": "tokens of a KV page",
    "max-rank": "largest rank of an adapter",
    "threads": "the engine's threads",
    "max-slots": "most adapters on the device at once",
    "start-s": "seconds in which an engine must be warm",
}
"""Flags whose default the base, the budget and the cores decide (``lorry.engine.settings``), and what they bound."""


def register(commands: Commands) -> None:
    _demo(commands)
    _serve(commands)
    migrate = commands.add_parser("migrate", help="bring a registry's database to the newest schema")
    migrate.add_argument("--url", default=None, help="SQLAlchemy URL (default: the registry in LORRY_HOME)")
    migrate.set_defaults(run=_run_migrate)
    model = commands.add_parser("model", help="prepare the demo's base model under LORRY_HOME")
    model.set_defaults(run=_run_model)


def _demo(commands: Commands) -> None:
    demo = commands.add_parser("demo", help="the main job on a real model: start everything, show it, stop it")
    demo.add_argument("--home", type=Path, default=None, help="instead of LORRY_HOME")
    demo.add_argument("--svg", type=Path, default=None, metavar="FILE", help="write the tables as a picture too")
    demo.set_defaults(run=_run_demo)


def _serve(commands: Commands) -> None:
    defaults, memory, ops = GatewayConfig(), MemoryConfig(), OpsConfig()
    serve = commands.add_parser("serve", help="run the platform on this machine until Ctrl-C")
    serve.add_argument("--home", type=Path, default=None, help="instead of LORRY_HOME")
    serve.add_argument("--demo", action="store_true", help="serve what the last `lorry demo` made")
    serve.add_argument("--base", type=Path, default=None, help="Hugging Face folder of the base (default: the demo's)")
    serve.add_argument("--host", default=defaults.host, help="address to listen on (default: %(default)s)")
    serve.add_argument("--port", type=port, default=defaults.port, help="port, 0 is any (default: %(default)s)")
    sized = serve.add_mutually_exclusive_group()
    sized.add_argument(
        "--memory-budget",
        type=budget,
        default=None,
        metavar="SIZE",
        help=f"for KV and adapters together, as 2GiB, or auto: {memory.budget_bytes >> 20}MiB, and on a GPU what a "
        "profiling pass leaves (default: auto)",
    )
    sized.add_argument("--memory-budget-mb", type=count, default=None, metavar="MIB", help="the same, in MiB")
    for name, kind, default, what in (
        ("adapter", part, memory.adapter_fraction, "most of the budget for adapters' rank rows"),
        ("extras", fraction, memory.extras_fraction, "most of it for all else that adapters bring"),
        ("kv", fraction, memory.kv_fraction, "what adapters leave of it to KV"),
    ):
        text = f"{what} (default: %(default)s)"
        serve.add_argument(f"--{name}-fraction", type=kind, default=default, metavar="F", help=text)
    serve.add_argument("--dtype", choices=DTYPES, default=DTYPES[0], help="of the base's weights")
    serve.add_argument("--device", default="cpu", help="cpu, or cuda or cuda:1 for a GPU (default: %(default)s)")
    serve.add_argument(
        "--context-tokens",
        type=count,
        default=SchedulerConfig().context_tokens,
        help="longest prompt and answer together (default: %(default)s)",
    )
    for name, what in DERIVED.items():
        serve.add_argument(f"--{name}", type=count, default=None, metavar="N", help=f"{what} (default: derived)")
    serve.add_argument(
        "--host-tier", type=size, default=None, metavar="SIZE", help="host memory for adapters (default: derived)"
    )
    serve.add_argument(
        "--staleness",
        choices=("strict", "available"),
        default=defaults.staleness,
        help="without its registry: end everything (strict), or refuse new calls alone (default: %(default)s)",
    )
    serve.add_argument(
        "--staleness-seconds", type=seconds, default=None, metavar="S", help="after so long (default: 5, or 300)"
    )
    serve.add_argument("--http-host", default=defaults.http_host, help="for OpenAI's API (default: %(default)s)")
    web = serve.add_mutually_exclusive_group()
    web.add_argument(
        "--http-port", type=port, default=None, help=f"its port (default: {HTTP_PORT}; any where --port is 0)"
    )
    web.add_argument("--no-http", action="store_true", help="do not serve OpenAI's API")
    serve.add_argument("--ops-host", default=ops.host, help="where health and state are served (default: %(default)s)")
    serve.add_argument("--ops-port", type=port, default=ops.port, help="its port, 0 is any (default: %(default)s)")
    tenants = "so many of the largest tenants have metrics of their own (default: %(default)s)"
    serve.add_argument("--metrics-tenants", type=number, default=defaults.metrics_tenants, metavar="N", help=tenants)
    adapters = "most names of adapters that /metrics/router lists (default: %(default)s, none)"
    serve.add_argument("--router-adapters", type=number, default=ops.router_adapters, metavar="N", help=adapters)
    serve.set_defaults(run=_run_serve)


def _run_demo(options: argparse.Namespace) -> int:
    from rich.console import Console

    from lorry.cli.demo import run_demo

    return asyncio.run(run_demo(home_of(options), Console(), options.svg))


def _run_serve(options: argparse.Namespace) -> int:
    from lorry.cli.serve import serve

    return asyncio.run(serve(options, home_of(options)))


def _run_migrate(options: argparse.Namespace) -> int:
    from lorry.cli.migrate import migrate

    return migrate(options, home_of(options))


def _run_model(options: argparse.Namespace) -> int:
    from lorry.cli.model import main as model

    return model()


__all__ = ["register"]
