"""What the groups' parsers share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from lorry.cli.times import moment_ahead
from lorry.config import lorry_home

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Run = Callable[[argparse.Namespace], int]


def home_of(options: argparse.Namespace) -> Path:
    """``--home`` where the command has it and it was given, else LORRY_HOME."""
    return getattr(options, "home", None) or lorry_home()


def group(commands: Commands, name: str, help: str) -> Commands:
    """A command with actions of its own."""
    return commands.add_parser(name, help=help).add_subparsers(dest="action", required=True, metavar="ACTION")


def remote(commands: Commands, name: str, help: str, run: Run) -> argparse.ArgumentParser:
    """A command that talks to a running platform."""
    parser = commands.add_parser(name, help=help)
    parser.set_defaults(run=run)
    add_connection(parser)
    parser.add_argument("--tenant", default="", metavar="T", help="whose (default: LORRY_TENANT, the profile's)")
    parser.add_argument(
        "--retries", type=retries, default=None, metavar="N", help="most times to try again (default: 2)"
    )
    add_json(parser)
    return parser


def add_connection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--address",
        default="",
        metavar="HOST:PORT",
        help="the gateway's; with https:// before it TLS is meant (default: LORRY_ADDRESS, the profile's)",
    )
    parser.add_argument("--tls", action="store_true", help="TLS by the authorities that the system trusts")
    parser.add_argument(
        *("--tls-ca", "--ca"),
        dest="ca",
        type=Path,
        default=None,
        metavar="FILE",
        help="TLS by these authorities, PEM (default: LORRY_TLS_CA, the profile's)",
    )
    parser.add_argument(
        *("--client-cert", "--cert"),
        dest="cert",
        type=Path,
        default=None,
        metavar="FILE",
        help="the client's own certificate for mTLS, PEM (default: LORRY_CLIENT_CERT, the profile's)",
    )
    parser.add_argument(
        *("--client-key", "--cert-key"),
        dest="cert_key",
        type=Path,
        default=None,
        metavar="FILE",
        help="its private key, PEM (default: LORRY_CLIENT_KEY, the profile's)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON document, with the API's field names")


def add_etag(parser: argparse.ArgumentParser, new: bool = False) -> None:
    text = "refuse if it is not the current one any more"
    parser.add_argument("--etag", default="", help=f"{text}; new: it must not be there" if new else text)


def add_expires(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--expires", type=moment_ahead, default=None, metavar="WHEN", help="30d, or a date (default: it does not)"
    )


def retries(text: str) -> int:
    if not text.isdecimal() or int(text) > 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not 0 to 100")
    return int(text)


def pair(text: str) -> tuple[str, str]:
    """``KEY=VALUE``."""
    key, found, value = text.partition("=")
    if not found or not key:
        raise argparse.ArgumentTypeError(f"{text!r}; write KEY=VALUE")
    return key, value


__all__ = [
    "Commands",
    "Run",
    "add_connection",
    "add_etag",
    "add_expires",
    "add_json",
    "group",
    "home_of",
    "pair",
    "remote",
    "retries",
]
