"""``lorry adapters validate``: the registration's checks, offline."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console
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
    table = Table(title=str(options.folder.name), expand=True)
    for name in ("check", "outcome", "message", "value", "limit"):
        table.add_column(name, ratio=1 if name == "message" else None)
    for check in report.checks:
        shown = ["" if value is None else str(value) for value in (check.value, check.limit)]
        table.add_row(check.id, f"[{_STYLES[check.outcome]}]{check.outcome}", check.message, *shown)
    console = Console()
    console.print(table)
    console.print("accepted" if report.ok else "refused")
    return 0 if report.ok else 1


__all__ = ["validate"]
