"""``make mutants``: each named guard is taken out of a copy of the sources, and the tests that hold it must turn red.

First all those tests run once with every guard in place, and must pass. A guard whose removal no test notices is named,
and the exit status is 1. So is one whose text is not once in its file: then the lists in this folder have to follow the
code. The tests and every process that they start get the copy's modules, by an environment of the copy's own.
"""

from __future__ import annotations

import argparse
import compileall
import os
import py_compile
import queue
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutants.guards import GUARDS, Guard

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("platform", "kernels", "admin", "migrations")
SOURCES = (*PACKAGES, "tests", "benchmarks", "docs", "examples", "proto")
LIMIT_S = 120.0
JOBS = 2
_TESTS_FAILED = 1


class Copy:
    """The sources in a folder of their own, with an interpreter that finds them there and nowhere else."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in SOURCES:
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copyfile(ROOT / "pyproject.toml", folder / "pyproject.toml")
        # By content and not by time and size: two versions of one file may have been written in the same second.
        for name in PACKAGES:
            compileall.compile_dir(folder / name, quiet=1, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
        # PYTHONPATH would not do: children in isolated mode do not read it.
        venv.create(folder / "venv", symlinks=True)
        self._python = folder / "venv" / "bin" / "python"
        own = sysconfig.get_path("purelib", vars={"base": str(folder / "venv"), "platbase": str(folder / "venv")})
        paths = [*(str(folder / name) for name in PACKAGES), *dict.fromkeys(map(sysconfig.get_path, ("purelib", "platlib")))]
        (Path(own) / "copy.pth").write_text("\n".join(paths) + "\n")

    def run(self, tests: Iterable[str], limit_s: float | None = LIMIT_S) -> tuple[int, str]:
        """(pytest's exit status, the end of its output); a run over the limit counts as failed."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        environment.pop("PYTHONPATH", None)
        command = [str(self._python), "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        try:
            done = subprocess.run(
                command, cwd=self.folder, env=environment, capture_output=True, timeout=limit_s, text=True, check=False
            )
        except subprocess.TimeoutExpired:
            return _TESTS_FAILED, "over the limit"
        return done.returncode, done.stdout[-4000:]

    def verdict(self, guard: Guard) -> str:
        """``dies`` where the tests fail without the guard."""
        path = self.folder / guard.path
        source = path.read_text(encoding="utf-8")
        if source.count(guard.text) != 1:
            return f"is not once in {guard.path}"
        path.write_text(source.replace(guard.text, guard.without), encoding="utf-8")
        try:
            status, _ = self.run(guard.tests)
        finally:
            path.write_text(source, encoding="utf-8")
        return "dies" if status == _TESTS_FAILED else "SURVIVES" if status == 0 else f"broke the run (status {status})"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="guards to take out; all of them by default")
    parser.add_argument("--jobs", type=int, default=JOBS, help="guards that are out at once, each of a copy of its own")
    asked = parser.parse_args()
    unknown = set(asked.names) - {guard.name for guard in GUARDS}
    if unknown:
        parser.error(f"no such guard: {', '.join(sorted(unknown))}")
    chosen = [guard for guard in GUARDS if not asked.names or guard.name in asked.names]
    with tempfile.TemporaryDirectory() as scratch:
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for number in range(max(1, min(asked.jobs, len(chosen)))):
            copies.put(Copy(Path(scratch) / str(number)))
        return _judge(chosen, copies)


def _judge(chosen: list[Guard], copies: queue.SimpleQueue[Copy]) -> int:
    began = time.monotonic()
    whole = copies.get()
    status, output = whole.run(dict.fromkeys(test for guard in chosen for test in guard.tests), limit_s=None)
    copies.put(whole)
    if status != 0:
        print(f"with every guard in place the tests do not pass (status {status}):\n{output}")
        return 1
    print(f"with every guard in place the tests pass ({time.monotonic() - began:.0f} s)", flush=True)

    def judge(guard: Guard) -> bool:
        copy, began = copies.get(), time.monotonic()
        try:
            verdict = copy.verdict(guard)
        finally:
            copies.put(copy)
        print(f"{guard.name:<48} {verdict} ({time.monotonic() - began:.0f} s)", flush=True)
        return verdict == "dies"

    with ThreadPoolExecutor(copies.qsize()) as pool:
        died = list(pool.map(judge, chosen))
    survivors = [guard.name for guard, dead in zip(chosen, died, strict=True) if not dead]
    if survivors:
        print(f"not held by a test: {', '.join(survivors)}")
        return 1
    print(f"{len(chosen)} guards are each held by a test ({time.monotonic() - began:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
