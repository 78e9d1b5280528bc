"""``lorry adapters formats``: the capability statement, as tables or JSON."""

from __future__ import annotations

import argparse
import json

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lorry.adapters.config.formats import sections, statement

_NAME = 24
"""Columns that a name has at least, where it needs them."""


def formats(options: argparse.Namespace) -> int:
    if options.json:
        print(json.dumps(statement(), indent=2))
        return 0
    console = Console()
    for section in sections():
        table = Table(title=section.title, title_justify="left", box=None, pad_edge=False)
        rows = [[cell.replace("`", "") for cell in row] for row in section.rows]
        used = [at for at in range(len(section.columns)) if any(row[at] for row in rows)]
        for at in used:
            longest = max(len(row[at]) for row in rows)
            table.add_column(section.columns[at], overflow="fold", min_width=min(longest, _NAME) if at == 0 else None)
        for row in rows:
            table.add_row(*(escape(row[at]) for at in used))
        console.print(table)
        console.print()
    return 0


__all__ = ["formats"]
