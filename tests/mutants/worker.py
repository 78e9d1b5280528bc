"""Runs pytest in forks of one process that has the large libraries loaded: loading them is most of a narrow run.

Nothing of the sources is loaded before the fork. Each line of standard input is a JSON list: the file that the output
goes to, the seconds that the run may take, and pytest's arguments. Each is answered with a line: pytest's exit status,
or that of failed tests where it took too long.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
import traceback
from typing import NoReturn

LLAMA, QWEN = (f"transformers.models.{family}.modeling_{family}" for family in ("llama", "qwen2"))
LOADED = ("numpy", "torch", "peft", LLAMA, QWEN)
TESTS_FAILED = 1
BROKEN = 70
"""pytest itself failed; it has no such status."""


def main() -> None:
    os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "HF_HUB_OFFLINE": "1"}
    for name in LOADED:
        importlib.import_module(name)
    for line in sys.stdin:
        output, limit_s, arguments = json.loads(line)
        print(_run(output, limit_s, arguments), flush=True)


def _run(output: str, limit_s: float, arguments: list[str]) -> int:
    child = os.fork()
    if child == 0:
        _test(output, arguments)
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return TESTS_FAILED


def _test(output: str, arguments: list[str]) -> NoReturn:
    os.setsid()  # so that what it starts can be ended with it
    said = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for stream in (1, 2):
        os.dup2(said, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    status = BROKEN
    try:
        import pytest

        status = int(pytest.main(arguments))
    except BaseException:  # of pytest or a plugin: said, and the run is broken
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()

__all__ = ["BROKEN", "TESTS_FAILED", "main"]
