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
from lorry.config import GatewayConfig, lorry_home
from lorry.errors import LorryError


def build_parser() -> argparse.ArgumentParser:
    defaults = GatewayConfig()
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
    serve.add_argument("--port", type=int, default=defaults.port, help="port, 0 is any (default: %(default)s)")
    serve.add_argument("--memory-budget-mb", type=int, default=None, help="bytes for KV and adapters, in MiB")
    serve.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of the base's weights")

    generate = commands.add_parser("generate", help="one streamed answer from a running gateway")
    generate.add_argument("prompt", help="the user's message (with --raw: the prompt as it is)")
    generate.add_argument("--model", required=True, help="models/{base}, tenants/{t}/adapters/{a}[@alias]")
    generate.add_argument("--address", default=os.environ.get("LORRY_ADDRESS", f"{defaults.host}:{defaults.port}"))
    generate.add_argument("--max-tokens", type=int, default=128)
    generate.add_argument("--temperature", type=float, default=0.0)
    generate.add_argument("--seed", type=int, default=None)
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
