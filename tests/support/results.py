"""Where the full-size tests keep what they measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def keep_result(name: str, values: dict[str, Any]) -> None:
    """Writes ``benchmarks/results/{name}.json``."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(values, indent=2) + "\n")


__all__ = ["RESULTS", "keep_result"]
