"""``lorry adapters validate``: the registration's checks, offline."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lorry.adapters.report import ValidationReport
from lorry.adapters.sandbox.examine import examine
from lorry.cli.model import model_directory
from lorry.errors import ResourceNotFound, UnsupportedBase

_STYLES = {"pass": "green", "warn": "yellow", "fail": "red"}


def validate(options: argparse.Namespace, home: Path) -> int:
    """0: it would be accepted; 1: refused."""
    base = options.base or model_directory(home)
    config = base / "config.json"
    if not config.is_file():
        raise ResourceNotFound(f"--base: {config} is missing; give the base's folder, or run `lorry model` first")
    report = examine(options.folder, _object(config), base_dir=base)
    if options.json:
        print(json.dumps(report.to_dict(), indent=2))
    else:
        _show(report, options.folder.name)
    return 0 if report.ok else 1


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise UnsupportedBase(f"--base: {path} cannot be read ({error}); give the base's folder") from error
    if not isinstance(found, dict):
        raise UnsupportedBase(f"--base: {path} is no JSON object; give the base's folder")
    return found


def _show(report: ValidationReport, name: str) -> None:
    table = Table(title=escape(name), box=None, pad_edge=False)
    table.add_column("check", overflow="fold")
    table.add_column("", no_wrap=True)
    table.add_column("message", ratio=1, overflow="fold")
    for check in report.checks:
        limit = "" if check.limit is None else f" (limit {check.limit})"
        outcome = f"[{_STYLES[check.outcome]}]{check.outcome}"
        table.add_row(escape(check.id), outcome, escape(f"{check.message}{limit}"))
    console = Console()
    console.print(table)
    console.print("accepted" if report.ok else "refused")


__all__ = ["validate"]
