"""The demo's tables as a picture, for the README: an SVG with its own background that fetches nothing."""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.terminal_theme import MONOKAI

from lorry.errors import InvalidRequest

_COLUMNS = 108
# rich names a font on a public host; a picture in a repository must fetch nothing.
_FONT_FACE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


class Picture:
    """Tables in the order they were added. Nothing else is in it: no paths, no keys, no addresses."""

    def __init__(self, file: Path | None) -> None:
        """``file`` None draws nothing. Raises InvalidRequest where its folder is not there."""
        if file is not None and not file.resolve().parent.is_dir():
            raise InvalidRequest.field("svg", f"{file.parent} is not a folder; make it first")
        self._file = file
        self._console = Console(record=True, file=io.StringIO(), width=_COLUMNS, color_system="truecolor")

    def add(self, table: Table) -> None:
        if self._file is not None:
            self._console.print(table)
            self._console.print()

    def save(self) -> None:
        if self._file is not None:
            drawn = self._console.export_svg(title="make demo", theme=MONOKAI, unique_id="demo")
            self._file.write_text(_FONT_FACE.sub("", drawn), encoding="utf-8")


__all__ = ["Picture"]
