"""Each part in a process of its own: one that crashes, hangs or ruins the device's context hides no other."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from gpu.log import Found
from gpu.parts import Part

TOTAL_S = 465.0
"""Of the whole check: what is left of eight minutes is for its start and its end."""
_GRACE_S = 10.0
"""After a part's own seconds, before it is ended."""

Command = Callable[[Part, float, Path], Sequence[str]]
"""(part, seconds, file for what it finds) -> arguments of its process."""


def run_parts(
    parts: Sequence[Part],
    command: Command,
    *,
    workers: int,
    total_s: float = TOTAL_S,
    grace_s: float = _GRACE_S,
    clock: Callable[[], float] = time.monotonic,
) -> list[Found]:
    """In the order of ``parts``. Those that may run together do, ``workers`` at a time, before the others."""
    begun = clock()
    found: dict[str, Found] = {}
    with TemporaryDirectory(prefix="gpu-check-") as scratch:

        def one(part: Part) -> Found:
            seconds = min(part.seconds, total_s - (clock() - begun))
            if seconds <= 0:
                return Found(part.name, "out of time", problem=f"the check's {total_s:.0f} s are over: not begun")
            return _run(part, command, seconds, grace_s, Path(scratch) / f"{part.name}.json")

        together = [part for part in parts if part.together]
        with ThreadPoolExecutor(max(workers, 1)) as pool:
            found.update(zip((part.name for part in together), pool.map(one, together), strict=True))
        for part in parts:
            if not part.together:
                found[part.name] = one(part)
    return [found[part.name] for part in parts]


def _run(part: Part, command: Command, seconds: float, grace_s: float, path: Path) -> Found:
    begun = time.monotonic()
    process = subprocess.Popen(list(command(part, seconds, path)))
    ended = ""
    try:
        status = process.wait(seconds + grace_s)
        ended = f"its process ended with status {status}"
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    found = _read(part, path)
    if found.state == "running":
        found.seconds = round(time.monotonic() - begun, 2)
        found.state = "error" if ended else "out of time"
        found.problem = ended or f"ended by force after {found.seconds:.0f} s"
    return found


def _read(part: Part, path: Path) -> Found:
    try:
        return Found.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return Found(part.name)


def python_command(program: Path, toy: bool) -> Command:
    """``program`` once more, for one part."""

    def command(part: Part, seconds: float, path: Path) -> Sequence[str]:
        asked = ["--part", part.name, "--seconds", f"{seconds:.1f}", "--found", str(path)]
        return [sys.executable, str(program), *asked, *["--toy"] * toy]

    return command


__all__ = ["TOTAL_S", "Command", "python_command", "run_parts"]
