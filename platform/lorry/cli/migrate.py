"""``lorry migrate``: the registry's schema."""

from __future__ import annotations

import argparse
import asyncio
import os
from pathlib import Path

from lorry.cli.homes import Home
from lorry.registry import migrate as to_newest
from lorry.registry.external import REGISTRY_VARIABLE, check_url


def migrate(options: argparse.Namespace, home: Path) -> int:
    given = options.url or os.environ.get(REGISTRY_VARIABLE)
    url = given or Home(home).registry_url
    if given is not None:
        check_url(given, "--url" if options.url else REGISTRY_VARIABLE)
    else:
        home.mkdir(parents=True, exist_ok=True)
    asyncio.run(to_newest(url))
    print("the registry has the newest schema")
    return 0


__all__ = ["migrate"]
