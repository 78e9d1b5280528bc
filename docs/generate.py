"""Writes what in the documentation is made from code: docs/api.md, docs/cli.md, docs/metrics.md, and the marked parts
of docs/adapters.md and README.md.

    python docs/generate.py            (or: make docs)

A marked part lies between ``<!-- generated: NAME -->`` and ``<!-- end -->``; the rest of those files is written by
hand. A test compares every file with what this would write.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from making.api import api_page
from making.cli import cli_page
from making.formats import formats_tables
from making.metrics import metrics_page

ROOT = Path(__file__).resolve().parent.parent


def make_help() -> str:
    """What ``make help`` prints, as a code block."""
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    shown = subprocess.run(
        ["make", "--silent", "--no-print-directory", "help"],
        cwd=ROOT,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return f"```\n{shown.stdout.rstrip()}\n```\n"


def fill(text: str, parts: Mapping[str, Callable[[], str]]) -> str:
    """``text`` with every marked part made anew. Raises KeyError for a name that nobody makes."""

    def made(match: re.Match[str]) -> str:
        return f"{match[1]}\n{parts[match[2]]()}{match[3]}"

    return re.sub(r"(<!-- generated: ([a-z-]+) -->)\n.*?(<!-- end -->)", made, text, flags=re.DOTALL)


def pages() -> dict[Path, str]:
    """Every file that is generated, or holds generated parts, as it should be."""
    parts: dict[str, Callable[[], str]] = {"formats": formats_tables, "make-help": make_help}
    found = {
        ROOT / "docs" / "api.md": api_page(),
        ROOT / "docs" / "cli.md": cli_page(),
        ROOT / "docs" / "metrics.md": metrics_page(),
    }
    for path in (ROOT / "docs" / "adapters.md", ROOT / "README.md"):
        found[path] = fill(path.read_text(encoding="utf-8"), parts)
    return found


def main() -> int:
    for path, text in pages().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
