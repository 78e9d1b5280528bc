"""Benchmarks are programs beside the packages: importable here as they are when they are run."""

import sys
from pathlib import Path

BENCHMARKS = str(Path(__file__).parents[3] / "benchmarks")
if BENCHMARKS not in sys.path:
    sys.path.append(BENCHMARKS)
