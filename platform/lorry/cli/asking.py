"""Questions on a terminal."""

from __future__ import annotations

import argparse
import getpass
import sys

from lorry.errors import InvalidRequest


def sure(options: argparse.Namespace, question: str) -> None:
    """Raises InvalidRequest unless ``--yes`` was given or a person says yes."""
    if options.yes:
        return
    if not sys.stdin.isatty():
        raise InvalidRequest.field("--yes", "this cannot be undone and nobody is here to be asked; give --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise InvalidRequest.field("--yes", "nothing was done")


def secret(prompt: str) -> str:
    """One line: unseen on a terminal, else from standard input."""
    text = getpass.getpass(prompt) if sys.stdin.isatty() else sys.stdin.readline()
    return text.strip()


__all__ = ["secret", "sure"]
