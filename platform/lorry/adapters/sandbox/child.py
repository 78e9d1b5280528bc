"""The process that reads an adapter's files: ``python -I -m lorry.adapters.sandbox.child``, started by ``sandbox``.

The request is one JSON object on standard input; the answer is JSON lines on standard output:
``{"stage": name}`` at each stage, the first when the limits hold and nothing of the adapter was touched yet,
``{"row": check}`` for each row, and last ``{"done": {"accepted": ..., "peak_bytes": ..., "cpu_s": ...}}``, or
``{"base": message}`` where it is the base's folder that cannot be read. A process that ends otherwise says why by how
it ends: ``OUT_OF_MEMORY``, a signal, or another status with a trace on standard error.
"""

from __future__ import annotations

import errno
import json
import math
import os
import resource
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lorry.adapters.header import HeaderLimits
from lorry.adapters.report import Check
from lorry.adapters.sandbox.limits import OUT_OF_MEMORY, Allowance, Stage, allowances_from_dict
from lorry.adapters.validate import Limits, validate_directory
from lorry.adapters.watch import Watch
from lorry.errors import UnsupportedBase
from lorry.layers.spec import DecoderSpec

_REQUEST_BYTES = 8 << 20
_ROW_TEXT = 2000
_ID_TEXT = 128
_OPEN_FILES = 256
_TORCH_OUT_OF_MEMORY = "can't allocate memory"


class Reporter(Watch):
    """Writes rows and stages, and sets each stage's limits when it is entered. At most ``rows`` rows: one more is a
    refusal that says so, and the rest is counted only."""

    def __init__(self, descriptor: int, allowances: Mapping[Stage, Allowance], rows: int) -> None:
        self._descriptor = descriptor
        self._allowances = allowances
        self._most = rows
        self._rows = 0

    def row(self, check: Check) -> None:
        self._rows += 1
        if self._rows <= self._most:
            self.write({"row": plain(check)})
        elif self._rows == self._most + 1:
            cut = Check.fail("sandbox.rows", f"over {self._most} rows; correct these first", self._rows, self._most)
            self.write({"row": plain(cut)})

    def stage(self, name: Stage) -> None:
        enter(self._allowances[name])
        self.write({"stage": name})

    @property
    def cut(self) -> bool:
        return self._rows > self._most

    def write(self, line: Mapping[str, Any]) -> None:
        data = json.dumps(line, allow_nan=False).encode("ascii") + b"\n"
        while data:
            data = data[os.write(self._descriptor, data) :]


def plain(check: Check) -> dict[str, Any]:
    """A row whose text any database, log and protobuf takes: no lone surrogate, no control character, bounded."""
    found = check.to_dict()
    found["id"] = printable(check.id)[:_ID_TEXT]
    found["message"] = printable(check.message)[:_ROW_TEXT]
    for field in ("value", "limit"):
        if isinstance(found[field], str):
            found[field] = printable(found[field])[:_ROW_TEXT]
    return found


def printable(text: str) -> str:
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def confine(allowances: Mapping[Stage, Allowance]) -> None:
    """What holds for the whole process: no core dump, no file written, few open files; and the hard limits, which no
    later stage can pass."""
    _limit(resource.RLIMIT_CORE, 0, 0)
    _limit(resource.RLIMIT_FSIZE, 0, 0)
    _limit(resource.RLIMIT_NOFILE, _OPEN_FILES, _OPEN_FILES)
    seconds = _cpu_s() + sum(found.cpu_s for found in allowances.values())
    _limit(resource.RLIMIT_CPU, math.ceil(seconds) + 2, math.ceil(seconds) + 2)
    if sys.platform == "linux":
        most = max(found.data_bytes for found in allowances.values())
        _limit(resource.RLIMIT_DATA, most, most)
    # Should the parent be gone: nobody else would end this process while it waits for something.
    signal.setitimer(signal.ITIMER_REAL, sum(found.wall_s for found in allowances.values()))


def enter(allowance: Allowance) -> None:
    """The timer is exact and ends the process by SIGPROF; RLIMIT_CPU counts whole seconds and stands behind it."""
    signal.setitimer(signal.ITIMER_PROF, allowance.cpu_s)
    _limit(resource.RLIMIT_CPU, math.ceil(_cpu_s() + allowance.cpu_s) + 1)
    if sys.platform == "linux":
        _limit(resource.RLIMIT_DATA, allowance.data_bytes)


def main() -> None:
    # Nothing that a library prints may end up between the lines.
    answers = os.dup(1)
    os.dup2(2, 1)
    request = json.loads(sys.stdin.buffer.read(_REQUEST_BYTES))
    allowances = allowances_from_dict(request["allowances"])
    confine(allowances)
    reporter = Reporter(answers, allowances, request["rows"])
    spec = DecoderSpec.from_config(request["spec_config"])
    limits = Limits(**{**request["limits"], "header": HeaderLimits(**request["limits"]["header"])})
    base_dir = None if request["base_dir"] is None else Path(request["base_dir"])
    reporter.stage("structure")
    try:
        report = validate_directory(Path(request["path"]), spec, limits, request["base_name"], base_dir, reporter)
        accepted = None if report.accepted is None or reporter.cut else asdict(report.accepted)
        done = {"accepted": accepted, "peak_bytes": peak_bytes(), "cpu_s": _cpu_s()}
        reporter.write({"done": done})
    except UnsupportedBase as error:
        reporter.write({"base": error.message})
    except (MemoryError, OSError, RuntimeError) as error:
        if _out_of_memory(error):
            os._exit(OUT_OF_MEMORY)
        raise
    os._exit(0)  # nothing is left to be done, and a library's way out can fail


def peak_bytes() -> int:
    """The most that was resident, pages of mapped files with it. Linux's ru_maxrss counts the parent's memory at the
    fork too, so it is not what is read there."""
    if sys.platform == "linux":
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most << 10


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _limit(kind: int, soft: int, hard: int | None = None) -> None:
    """Where a limit is already lower than asked, the lower one stays."""
    _, have = resource.getrlimit(kind)
    want = have if hard is None else hard if have == resource.RLIM_INFINITY else min(hard, have)
    resource.setrlimit(kind, (soft if want == resource.RLIM_INFINITY else min(soft, want), want))


def _out_of_memory(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or _TORCH_OUT_OF_MEMORY in str(error)


__all__ = ["Reporter", "confine", "enter", "main", "peak_bytes", "plain", "printable"]

if __name__ == "__main__":
    main()
