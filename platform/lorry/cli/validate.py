"""``lorry adapters validate``: the registration's checks, offline."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lorry.adapters.validate import validate_directory
from lorry.cli.model import model_directory
from lorry.errors import ResourceNotFound
from lorry.layers.spec import DecoderSpec

_STYLES = {"pass": "green", "warn": "yellow", "fail": "red"}


def validate(options: argparse.Namespace, home: Path) -> int:
    base = options.base or model_directory(home)
    config = base / "config.json"
    if not config.is_file():
        raise ResourceNotFound(f"--base: {config} is missing; give the base's folder, or run `lorry model` first")
    report = validate_directory(options.folder, DecoderSpec.from_config(json.loads(config.read_text())))
    if options.json:
        print(json.dumps(report.to_dict(), indent=2))
        return 0 if report.ok else 1
    table = Table(title=str(options.folder.name), box=None, pad_edge=False)
    table.add_column("check", overflow="fold")
    table.add_column("", no_wrap=True)
    table.add_column("message", ratio=1, overflow="fold")
    for check in report.checks:
        limit = "" if check.limit is None else f" (limit {check.limit})"
        outcome = f"[{_STYLES[check.outcome]}]{check.outcome}"
        table.add_row(check.id, outcome, escape(f"{check.message}{limit}"))
    console = Console()
    console.print(table)
    console.print("accepted" if report.ok else "refused")
    return 0 if report.ok else 1


__all__ = ["validate"]
