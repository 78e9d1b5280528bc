"""``make mutants``: each named guard is taken out of a copy of the sources, and the tests that hold it must turn red.

A guard whose removal no test notices is named, and the exit status is 1. So is one whose text is no longer in its file:
then the list in ``guards.py`` has to follow the code.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.mutants.guards import GUARDS, Guard

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("platform", "kernels", "admin", "migrations", "tests", "benchmarks", "docs", "examples", "proto")
LIMIT_S = 300.0
_TESTS_FAILED = 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="guards to take out; all of them by default")
    names = parser.parse_args().names
    unknown = set(names) - {guard.name for guard in GUARDS}
    if unknown:
        parser.error(f"no such guard: {', '.join(sorted(unknown))}")
    chosen = [guard for guard in GUARDS if not names or guard.name in names]
    survivors: list[str] = []
    green: set[tuple[str, ...]] = set()
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "copy"
        copy.mkdir()
        for name in SOURCES:
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copyfile(ROOT / "pyproject.toml", copy / "pyproject.toml")
        for number, guard in enumerate(chosen, 1):
            began = time.monotonic()
            verdict = _verdict(copy, guard, green)
            seconds = time.monotonic() - began
            print(f"{number:3}/{len(chosen)}  {guard.name:<40} {verdict} ({seconds:.0f} s)", flush=True)
            if verdict != "dies":
                survivors.append(guard.name)
    if survivors:
        print(f"not held by a test: {', '.join(survivors)}")
        return 1
    print(f"{len(chosen)} guards are each held by a test")
    return 0


def _verdict(copy: Path, guard: Guard, green: set[tuple[str, ...]]) -> str:
    """``dies`` where the tests fail without the guard, and pass with it. ``green``: tests that were seen to pass."""
    path = copy / guard.path
    source = path.read_text(encoding="utf-8")
    if source.count(guard.text) != 1:
        return f"is not once in {guard.path}"
    if guard.tests not in green:
        if _run(copy, guard) != 0:
            return "has tests that fail with it in place"
        green.add(guard.tests)
    path.write_text(source.replace(guard.text, guard.without), encoding="utf-8")
    try:
        status = _run(copy, guard)
    finally:
        path.write_text(source, encoding="utf-8")
    return "dies" if status == _TESTS_FAILED else "SURVIVES" if status == 0 else f"broke the run (status {status})"


def _run(copy: Path, guard: Guard) -> int:
    roots = [str(copy / name) for name in ("platform", "kernels", "admin", "migrations")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(roots), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *guard.tests]
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return _TESTS_FAILED
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
