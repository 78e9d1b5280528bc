"""Figures and tables of what is live: made once, drawn by the server, and sent as they change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lorry.errors import LorryError
from lorry_admin.web import sse
from lorry_admin.web.answers import error_json

EVERY_S = 2.0
"""Between two looks of a page that is open."""
LIVE_S = 120.0
"""After so long a stream ends, and the page asks for another: a session that has ended meanwhile is noticed."""


@dataclass(frozen=True, slots=True)
class Cell:
    """``href`` "": no link. ``style``: num, nowrap, code, or id (one that may be long). ``title``: of what the words
    shorten."""

    words: str
    href: str = ""
    style: str = ""
    title: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    label: str
    value: str
    sub: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    label: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """``none``: what stands there while it has no rows. ``note``: below it."""

    id: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    none: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """``problem``: why there is nothing more to show."""

    title: str = ""
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Board:
    panels: Sequence[Panel] = field(default_factory=tuple)


def board_json(board: Board) -> dict[str, Any]:
    """What a page's script puts in the place of what is there: texts alone. ``shape`` is another where there are other
    panels, figures or tables, which the script does not draw."""
    tables = [table for panel in board.panels for table in panel.tables]
    return {
        "shape": shape_of(board),
        "figures": [[figure.value, figure.sub] for panel in board.panels for figure in panel.figures],
        "rows": {
            table.id: [[[cell.words, cell.href, cell.style, cell.title] for cell in row] for row in table.rows]
            for table in tables
        },
        "notes": {table.id: table.note for table in tables},
    }


def shape_of(board: Board) -> str:
    panels = (
        f"{panel.title}:{panel.problem}:{len(panel.figures)}:{'+'.join(table.id for table in panel.tables)}"
        for panel in board.panels
    )
    return "|".join(panels)


async def live_events(
    look: Callable[[], Awaitable[Board]], every_s: float = EVERY_S, live_s: float = LIVE_S
) -> AsyncIterator[bytes]:
    """``board`` where something changed, ``error`` (the last) where it cannot be had."""
    before: dict[str, Any] = {}
    for _ in range(max(1, round(live_s / every_s))):
        try:
            now = board_json(await look())
        except LorryError as error:
            yield sse.event("error", error_json(error))
            return
        yield sse.event("board", now) if now != before else b": the same\n\n"
        before = now
        await asyncio.sleep(every_s)


__all__ = [
    "EVERY_S", "LIVE_S", "Board", "Cell", "Column", "Figure", "Panel", "Table", "board_json", "live_events", "shape_of",
]  # fmt: skip
