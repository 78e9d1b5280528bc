"""``make mutants``: each named guard is taken out of a copy of the sources, and the tests that hold it must turn red.

First all those tests run once with every guard in place, and must pass. A guard whose removal no test notices is named,
and the exit status is 1. So is one whose text is not once in its file: then the lists in this folder have to follow the
code. The tests and every process that they start get the copy's modules, by an environment of the copy's own.
"""

from __future__ import annotations

import argparse
import compileall
import json
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
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.mutants.guards import GUARDS, Guard
from tests.mutants.worker import TESTS_FAILED

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("platform", "kernels", "admin", "migrations")
SOURCES = (*PACKAGES, "tests", "benchmarks", "docs", "examples", "proto")
LIMIT_S = 120.0
WHOLE_LIMIT_S = 1800.0
JOBS = 2
PLUGINS_OFF = ("-p", "no:cacheprovider", "-p", "no:unraisableexception")
"""A test that fails may leave something open, which says nothing."""
LOADED_ALREADY = "ignore::pytest.PytestAssertRewriteWarning"
"""A plugin of pytest's is loaded with transformers, before the fork."""
BY_CONTENT = py_compile.PycInvalidationMode.CHECKED_HASH
"""Not by time and size: two versions of one file may be written in the same second."""


class Copy:
    """The sources in a folder of their own, with an interpreter that finds them there and nowhere else, and a worker
    that runs tests on them. A context manager."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in SOURCES:
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copyfile(ROOT / "pyproject.toml", folder / "pyproject.toml")
        for name in PACKAGES:
            compileall.compile_dir(folder / name, quiet=1, invalidation_mode=BY_CONTENT)
        # PYTHONPATH would not do: children in isolated mode do not read it.
        own = folder / "venv"
        venv.create(own, symlinks=True)
        libraries = dict.fromkeys(sysconfig.get_path(kind) for kind in ("purelib", "platlib"))
        paths = [*(str(folder / name) for name in PACKAGES), *libraries]
        site = sysconfig.get_path("purelib", "venv", {"base": str(own), "platbase": str(own)})
        (Path(site) / "copy.pth").write_text("\n".join(paths) + "\n")
        self._python = own / "bin" / "python"

    def __enter__(self) -> Self:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment.setdefault("TRITON_INTERPRET", "1")  # read when triton is imported, before any conftest
        self._worker = subprocess.Popen(
            [str(self._python), "-m", "tests.mutants.worker"],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._worker.kill()
        self._worker.communicate()

    def run(self, tests: Iterable[str], limit_s: float = LIMIT_S) -> int:
        """pytest's exit status; a run over the limit counts as failed. What it said is in ``said``."""
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        arguments = ["-q", "-x", *PLUGINS_OFF, "-W", LOADED_ALREADY, *tests]
        self._worker.stdin.write(json.dumps([str(self.folder / "said"), limit_s, arguments]) + "\n")
        self._worker.stdin.flush()
        return int(self._worker.stdout.readline())

    @property
    def said(self) -> str:
        """The end of it."""
        return (self.folder / "said").read_text(encoding="utf-8", errors="replace")[-4000:]

    def verdict(self, guard: Guard) -> str:
        """``dies`` where the tests fail without the guard."""
        path = self.folder / guard.path
        source = path.read_text(encoding="utf-8")
        if source.count(guard.text) != 1:
            return f"is not once in {guard.path}"
        path.write_text(source.replace(guard.text, guard.without), encoding="utf-8")
        try:
            status = self.run(guard.tests)
        finally:
            path.write_text(source, encoding="utf-8")
        return "dies" if status == TESTS_FAILED else "SURVIVES" if status == 0 else f"broke the run (status {status})"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="guards to take out; all of them by default")
    parser.add_argument("--jobs", type=int, default=JOBS, help="guards that are out at once, each of a copy of its own")
    asked = parser.parse_args()
    unknown = set(asked.names) - {guard.name for guard in GUARDS}
    if unknown:
        parser.error(f"no such guard: {', '.join(sorted(unknown))}")
    chosen = [guard for guard in GUARDS if not asked.names or guard.name in asked.names]
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for number in range(max(1, min(asked.jobs, len(chosen)))):
            copies.put(stack.enter_context(Copy(Path(scratch) / str(number))))
        return _judge(chosen, copies)


def _judge(chosen: list[Guard], copies: queue.SimpleQueue[Copy]) -> int:
    began = time.monotonic()
    whole = copies.get()
    status = whole.run(dict.fromkeys(test for guard in chosen for test in guard.tests), WHOLE_LIMIT_S)
    if status != 0:
        print(f"with every guard in place the tests do not pass (status {status}):\n{whole.said}")
        return 1
    copies.put(whole)
    print(f"with every guard in place the tests pass ({time.monotonic() - began:.0f} s)", flush=True)

    def judge(guard: Guard) -> bool:
        copy, began = copies.get(), time.monotonic()
        try:
            verdict = copy.verdict(guard)
        finally:
            copies.put(copy)
        print(f"{guard.name:<52} {verdict} ({time.monotonic() - began:.1f} s)", flush=True)
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
