"""``lorry migrate``: the registry's schema."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from lorry.cli.homes import Home
from lorry.registry import migrate as to_newest


def migrate(options: argparse.Namespace, home: Path) -> int:
    url = options.url or Home(home).registry_url
    if options.url is None:
        home.mkdir(parents=True, exist_ok=True)
    asyncio.run(to_newest(url))
    print("the registry has the newest schema")
    return 0


__all__ = ["migrate"]
