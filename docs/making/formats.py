"""The tables of docs/adapters.md: which forms of adapters are served."""

from __future__ import annotations

from lorry.adapters.config.formats import Section, sections
from making.markdown import cell, table


def formats_tables() -> str:
    """What ``lorry adapters formats`` prints."""
    return "".join(_formats(section) for section in sections())


def _formats(section: Section) -> str:
    used = [at for at in range(len(section.columns)) if any(row[at] for row in section.rows)]
    rows = [[cell(row[at]) for at in used] for row in section.rows]
    return f"### {section.title}\n\n" + table([section.columns[at] for at in used], rows) + "\n"
