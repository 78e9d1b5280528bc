"""``lorry bases``: what adapters are trained on; for platform administrators."""

from __future__ import annotations

import argparse
from pathlib import Path

from lorry.cli.commands.parsing import Commands, group, remote
from lorry.cli.output import show, show_all, when
from lorry.cli.session import session
from lorry.cli.sizes import count


def register(commands: Commands) -> None:
    actions = group(commands, "bases", "base models; for platform administrators")
    made = remote(actions, "create", "register the base that an engine serves from this folder", _create)
    made.add_argument("id", help="the {b} of models/{b}")
    made.add_argument("folder", type=Path, help="Hugging Face folder, the one of lorry serve --base")
    made.add_argument(
        "--context-tokens", type=count, default=0, metavar="N", help="as of lorry serve (default: the config's own)"
    )
    remote(actions, "list", "all bases", _list)
    remote(actions, "show", "one base with its digests", _show).add_argument("id", help="the {b} of models/{b}")


def _create(options: argparse.Namespace) -> int:
    from lorry.layers.base_files import CONFIG_FILE, base_digest
    from lorry.text import tokenizer_digest

    folder: Path = options.folder
    digest, tokenizer = base_digest(folder), tokenizer_digest(folder)
    config = (folder / CONFIG_FILE).read_text(encoding="utf-8")
    with session(options).admin() as admin:
        found = admin.create_base(options.id, digest, tokenizer, options.context_tokens, config)
    show(
        options,
        found,
        lambda one: f"{one.name} is registered, {one.context_tokens} tokens of context  sha256 {one.base_sha256}",
    )
    return 0


def _list(options: argparse.Namespace) -> int:
    with session(options).admin() as admin:
        show_all(
            options,
            "baseModels",
            admin.list_bases(),
            ("name", "context", "registered", "sha256"),
            lambda one: (one.name, one.context_tokens, when(one, "create_time"), one.base_sha256),
        )
    return 0


def _show(options: argparse.Namespace) -> int:
    name: str = options.id
    with session(options).admin() as admin:
        found = admin.get_base(name if "/" in name else f"models/{name}")
    show(
        options,
        found,
        lambda one: (
            f"{one.name}\nsha256     {one.base_sha256}\ntokenizer  {one.tokenizer_sha256}\n"
            f"context    {one.context_tokens} tokens\nregistered {when(one, 'create_time')}"
        ),
    )
    return 0


__all__ = ["register"]
