"""``lorry models``, ``generate``, ``chat``."""

from __future__ import annotations

import argparse

from lorry.cli.chat import chat
from lorry.cli.commands.parsing import Commands, pair, remote
from lorry.cli.generate import generate
from lorry.cli.output import show_all
from lorry.cli.session import session

_NUMBERS: tuple[tuple[str, type, str], ...] = (
    ("min-tokens", int, "the first so many are not searched for stops"),
    ("top-p", float, "nucleus mass, above 0 to 1"),
    ("top-k", int, "keep the K likeliest; 0 is all"),
    ("min-p", float, "keep what has so much of the likeliest's probability"),
    ("seed", int, "draws are the same for the same seed (default: minted)"),
    ("repetition-penalty", float, "above 0, 1 is none"),
    ("frequency-penalty", float, "-2 to 2"),
    ("presence-penalty", float, "-2 to 2"),
)


def register(commands: Commands) -> None:
    remote(commands, "models", "what this key may use", _models)
    asked = remote(commands, "generate", "one streamed answer", generate)
    asked.add_argument("prompt", help="the user's message (with --raw: the prompt as it is); - is standard input")
    _add_sampling(asked)
    asked.add_argument("--n", type=int, default=1, help="so many choices (default: 1)")
    asked.add_argument(
        "--top-logprobs", type=int, default=None, metavar="K", help="each token's logprob, with the K likeliest"
    )
    asked.add_argument("--request-id", default="", metavar="ID", help="one's own (default: minted)")
    asked.add_argument("--raw", action="store_true", help="no chat template")
    talk = remote(commands, "chat", "a conversation, on a terminal or line by line through a pipe", chat)
    _add_sampling(talk)
    talk.set_defaults(n=None, top_logprobs=None, request_id="")


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", required=True, help="pirate, pirate@prod, pirate/versions/3, models/smol, or any full name"
    )
    parser.add_argument("--system", default="", metavar="TEXT", help="the system's message")
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 is greedy (default: 0)")
    for name, kind, what in _NUMBERS:
        parser.add_argument(f"--{name}", type=kind, default=None, metavar="N", help=what)
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before it; repeatable")
    parser.add_argument(
        "--logit-bias", action="append", default=[], metavar="ID=VALUE", help="-100 to 100 for a token id; repeatable"
    )
    parser.add_argument("--expected-sha256", default="", metavar="HEX", help="refuse any version but of this digest")
    parser.add_argument("--cold-load", choices=("wait", "reject"), default=None, help="for an adapter not in memory")
    parser.add_argument("--cache-scope", default="", metavar="NAME", help="cached prefixes are shared within it alone")
    parser.add_argument(
        "--sticky-key", default="", metavar="KEY", help="equal keys get equal targets of an alias with a canary"
    )
    parser.add_argument(
        "--label", type=pair, action="append", default=[], metavar="KEY=VALUE", help="into the usage ledger; repeatable"
    )
    parser.add_argument("--timeout", type=float, default=None, metavar="S", help="seconds for all tries together")


def _models(options: argparse.Namespace) -> int:
    with session(options).client() as client:
        show_all(
            options,
            "models",
            client.list_models(),
            ("name", "version", "sha256", "base", "context", "aliases"),
            lambda one: (
                one.name,
                one.version or "-",
                one.sha256[:12] or "-",
                one.base,
                one.context_tokens,
                " ".join("@" + alias.rpartition("@")[2] for alias in one.aliases) or "-",
            ),
        )
    return 0


__all__ = ["register"]
