"""The command line: ``lorry COMMAND``. Each group of commands is a module of ``lorry.cli.commands``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import lorry
from lorry.cli.commands import (
    account,
    adapters,
    aliases,
    bases,
    fleet,
    generating,
    grants,
    keys,
    local,
    prices,
    quotas,
    records,
    tenants,
    users,
)
from lorry.cli.remedies import print_error
from lorry.errors import LorryError

GROUPS = (
    account, generating, adapters, aliases, keys, users, bases, tenants, grants, quotas, prices, records, fleet, local
)  # fmt: skip
"""In the order of ``lorry --help``."""
EPILOG = """\
exit status: 0 done; 1 refused or failed (validate, doctor and audit verify: the answer is no); 2 wrong usage;
130 interrupted. Commands against a running platform take address and key from LORRY_ADDRESS and LORRY_API_KEY, or
from what lorry login kept."""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lorry",
        description="Many LoRA adapters, many tenants, one base model.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"lorry {lorry.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for group in GROUPS:
        group.register(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: see ``EPILOG``."""
    options = build_parser().parse_args(argv)
    try:
        status = int(options.run(options))
        sys.stdout.flush()
        return status
    except LorryError as error:
        print_error(error, getattr(options, "json", False))
        return 1
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("lorry", "lorry_admin", "lorry_kernels", "lorry_migrations"):
            raise
        print(
            f"lorry: {error.name} is not installed; this command needs more than the client: "
            "pip install 'lorry[server]', for demo and model 'lorry[server,demo]'",
            file=sys.stderr,
        )
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read has seen enough; the interpreter's own flush at exit must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


__all__ = ["EPILOG", "GROUPS", "build_parser", "main"]
