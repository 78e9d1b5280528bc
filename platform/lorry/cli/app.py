"""The command line. Heavy imports stay inside the commands, so that ``lorry --help`` and ``generate`` need no
server packages."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import lorry
from lorry.cli.sizes import count, fraction, part, port, size
from lorry.config import GatewayConfig, MemoryConfig, OpsConfig, SchedulerConfig, lorry_home
from lorry.errors import LorryError

DTYPES = ("bfloat16", "float16", "float32")
DERIVED = {
    "max-sequences": "most requests in a step",
    "token-budget": "most tokens of a step",
    "prefill-chunk-tokens": "most prompt tokens of one request in a step",
    "page-tokens": "tokens of a KV page",
    "max-rank": "largest rank of an adapter",
    "threads": "the engine's threads",
}
"""Flags whose default the base, the budget and the cores decide (``lorry.engine.settings``), and what they bound."""


def build_parser() -> argparse.ArgumentParser:
    defaults, memory, ops = GatewayConfig(), MemoryConfig(), OpsConfig()
    parser = argparse.ArgumentParser(prog="lorry", description="Many LoRA adapters, many tenants, one base model.")
    parser.add_argument("--version", action="version", version=f"lorry {lorry.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    demo = commands.add_parser("demo", help="the main job on a real model: start everything, show it, stop it")
    demo.add_argument("--home", type=Path, default=None, help="instead of LORRY_HOME")
    demo.add_argument("--svg", type=Path, default=None, metavar="FILE", help="write the tables as a picture too")

    serve = commands.add_parser("serve", help="run the platform on this machine until Ctrl-C")
    serve.add_argument("--home", type=Path, default=None, help="instead of LORRY_HOME")
    serve.add_argument("--demo", action="store_true", help="serve what the last `lorry demo` made")
    serve.add_argument("--base", type=Path, default=None, help="Hugging Face folder of the base (default: the demo's)")
    serve.add_argument("--host", default=defaults.host, help="address to listen on (default: %(default)s)")
    serve.add_argument("--port", type=port, default=defaults.port, help="port, 0 is any (default: %(default)s)")
    budget = serve.add_mutually_exclusive_group()
    budget.add_argument(
        "--memory-budget",
        type=size,
        default=memory.budget_bytes,
        metavar="SIZE",
        help=f"for KV and adapters together, as 2GiB (default: {memory.budget_bytes >> 20}MiB)",
    )
    budget.add_argument("--memory-budget-mb", type=count, default=None, metavar="MIB", help="the same, in MiB")
    for name, kind, default, what in (
        ("adapter", part, memory.adapter_fraction, "most of the budget for adapters' rank rows"),
        ("extras", fraction, memory.extras_fraction, "most of it for all else that adapters bring"),
        ("kv", fraction, memory.kv_fraction, "what adapters leave of it to KV"),
    ):
        text = f"{what} (default: %(default)s)"
        serve.add_argument(f"--{name}-fraction", type=kind, default=default, metavar="F", help=text)
    serve.add_argument("--dtype", choices=DTYPES, default=DTYPES[0], help="of the base's weights")
    serve.add_argument("--device", default="cpu", help="cpu, or cuda: not tried on a GPU yet (default: %(default)s)")
    serve.add_argument(
        "--context-tokens",
        type=count,
        default=SchedulerConfig().context_tokens,
        help="longest prompt and answer together (default: %(default)s)",
    )
    for name, what in DERIVED.items():
        serve.add_argument(f"--{name}", type=count, default=None, metavar="N", help=f"{what} (default: derived)")
    serve.add_argument("--ops-host", default=ops.host, help="where health and state are served (default: %(default)s)")
    serve.add_argument("--ops-port", type=port, default=ops.port, help="its port, 0 is any (default: %(default)s)")

    generate = commands.add_parser("generate", help="one streamed answer from a running gateway")
    generate.add_argument("prompt", help="the user's message (with --raw: the prompt as it is)")
    generate.add_argument("--model", required=True, help="models/{base}, tenants/{t}/adapters/{a}[@alias]")
    generate.add_argument("--address", default=os.environ.get("LORRY_ADDRESS", f"{defaults.host}:{defaults.port}"))
    generate.add_argument("--max-tokens", type=int, default=128)
    generate.add_argument("--temperature", type=float, default=0.0)
    generate.add_argument("--seed", type=int, default=None)
    generate.add_argument("--n", type=int, default=1, help="so many choices (default: 1)")
    generate.add_argument("--repetition-penalty", type=float, default=None, help="above 0, 1 is none")
    generate.add_argument("--frequency-penalty", type=float, default=None, help="-2 to 2")
    generate.add_argument("--presence-penalty", type=float, default=None, help="-2 to 2")
    generate.add_argument(
        "--logit-bias", action="append", default=[], metavar="ID=VALUE", help="-100 to 100 for a token id; repeatable"
    )
    generate.add_argument(
        "--top-logprobs", type=int, default=None, metavar="K", help="each token's logprob, with the K likeliest"
    )
    generate.add_argument("--cache-scope", default="", help="cached prefixes are shared within it alone")
    generate.add_argument("--expected-sha256", default="", help="refuse any other version than this digest")
    generate.add_argument("--raw", action="store_true", help="no chat template")
    generate.add_argument("--json", action="store_true", help="one JSON object instead of the text")

    adapters = commands.add_parser("adapters", help="look at adapters without starting anything")
    kinds = adapters.add_subparsers(dest="action", required=True, metavar="ACTION")
    validate = kinds.add_parser("validate", help="would this folder be accepted? Non-zero where it would not")
    validate.add_argument("folder", type=Path)
    validate.add_argument(
        "--base", type=Path, default=None, help="Hugging Face folder of the base (default: the demo's)"
    )
    validate.add_argument("--json", action="store_true")
    formats = kinds.add_parser("formats", help="what of PEFT's adapters is served, and what is refused")
    formats.add_argument("--json", action="store_true")

    migrate = commands.add_parser("migrate", help="bring a registry's database to the newest schema")
    migrate.add_argument("--url", default=None, help="SQLAlchemy URL (default: the registry in LORRY_HOME)")

    commands.add_parser("model", help="prepare the demo's base model under LORRY_HOME")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0 well, 1 refused or failed, 130 interrupted."""
    options = build_parser().parse_args(argv)
    try:
        return _run(options)
    except LorryError as error:
        print(f"lorry: {error.grpc_code} {error.reason}: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _run(options: argparse.Namespace) -> int:
    home = getattr(options, "home", None) or lorry_home()
    match options.command:
        case "demo":
            from rich.console import Console

            from lorry.cli.demo import run_demo

            return asyncio.run(run_demo(home, Console(), options.svg))
        case "serve":
            from lorry.cli.serve import serve

            return asyncio.run(serve(options, home))
        case "generate":
            from lorry.cli.generate import generate

            return generate(options)
        case "adapters" if options.action == "formats":
            from lorry.cli.formats import formats

            return formats(options)
        case "adapters":
            from lorry.cli.validate import validate

            return validate(options, home)
        case "migrate":
            from lorry.cli.migrate import migrate

            return migrate(options, home)
        case _:
            from lorry.cli.model import main as model

            return model()


__all__ = ["build_parser", "main"]
