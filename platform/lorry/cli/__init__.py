"""The command line and the composition root."""

from lorry.cli.app import main

__all__ = ["main"]
