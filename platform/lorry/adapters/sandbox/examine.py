"""Validation in a process of its own, with limits on time and memory: nothing of a tenant's files is parsed here.

A child that takes too long, wants too much or dies is a refusal with a row of its own (``sandbox.time``,
``sandbox.memory``, ``sandbox.crash``), never an exception and never a hang. No torch.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lorry.adapters.report import Check, ValidationReport
from lorry.adapters.sandbox.limits import OUT_OF_MEMORY, SandboxLimits, Sizes, allowances_to_dict
from lorry.adapters.sandbox.process import Child, TooMuchSaid
from lorry.adapters.validate import Limits
from lorry.errors import Unavailable, UnsupportedBase
from lorry.layers.spec import DecoderSpec

log = logging.getLogger(__name__)

OnCheck = Callable[[Check], None]
CHILDREN = 4
"""How many children the async callers of one process have at once; the others wait."""
_CHILD = "lorry.adapters.sandbox.child"
_LIMITS = Limits()
_SANDBOX = SandboxLimits()
_TOO_LONG = frozenset({-signal.SIGPROF, -signal.SIGXCPU, -signal.SIGALRM})
_RUST_OUT_OF_MEMORY = b"memory allocation of"
_threads = ThreadPoolExecutor(CHILDREN, thread_name_prefix="lorry-sandbox")


@dataclass(frozen=True, slots=True)
class Usage:
    """What a child that ended by itself spent: the most that was resident at once, processor seconds of its life."""

    peak_bytes: int
    cpu_s: float


class Cancelled(Exception):
    """``Examination.cancel`` was called: there is no report."""


def examine(
    path: Path,
    spec_config: Mapping[str, Any],
    limits: Limits = _LIMITS,
    base_name: str | None = None,
    base_dir: Path | None = None,
    on_check: OnCheck | None = None,
    sandbox: SandboxLimits = _SANDBOX,
) -> ValidationReport:
    """``validate_directory`` in a child, without the plan; ``spec_config`` is the base's config.json. Blocks.

    ``on_check`` gets each row as soon as the child knows it, on this thread. Raises nothing for a bad adapter,
    UnsupportedBase for a bad base, and Unavailable where no child could be started: nothing is known of the adapter.
    """
    return Examination(path, spec_config, limits, base_name, base_dir, on_check, sandbox).run()


async def examine_async(
    path: Path,
    spec_config: Mapping[str, Any],
    limits: Limits = _LIMITS,
    base_name: str | None = None,
    base_dir: Path | None = None,
    on_check: OnCheck | None = None,
    sandbox: SandboxLimits = _SANDBOX,
) -> ValidationReport:
    """``examine`` beside the event loop, which calls ``on_check``, each call before this returns.

    Cancelling it kills the child, and it returns when the child is gone.
    """
    loop = asyncio.get_running_loop()

    def tell(check: Check) -> None:
        if on_check is not None:
            loop.call_soon_threadsafe(on_check, check)

    work = Examination(path, spec_config, limits, base_name, base_dir, tell, sandbox)
    begun = _threads.submit(work.run)
    ended = asyncio.wrap_future(begun)
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        work.cancel()
        if not begun.cancel():
            await asyncio.wait([ended])
            ended.exception()  # it was asked for
        raise


class Examination:
    """One child's life: ``run`` once, ``cancel`` from any thread at any time."""

    def __init__(
        self,
        path: Path,
        spec_config: Mapping[str, Any],
        limits: Limits = _LIMITS,
        base_name: str | None = None,
        base_dir: Path | None = None,
        on_check: OnCheck | None = None,
        sandbox: SandboxLimits = _SANDBOX,
    ) -> None:
        """Raises UnsupportedBase."""
        DecoderSpec.from_config(spec_config)
        self._sandbox = sandbox
        self._allowances = sandbox.allow(Sizes.of(path, base_dir, sandbox.most_bytes))
        request = {
            "path": os.path.abspath(path),
            "spec_config": spec_config,
            "limits": asdict(limits),
            "base_name": base_name,
            "base_dir": None if base_dir is None else os.path.abspath(base_dir),
            "allowances": allowances_to_dict(self._allowances),
            "rows": sandbox.rows,
        }
        self._request = json.dumps(request).encode("ascii")
        self._on_check = on_check
        self._child = Child(_CHILD)
        self._cancelled = False
        self._checks: list[Check] = []
        self._stage = "start"
        self._deadline = 0.0
        self._done: Mapping[str, Any] | None = None
        self._base_fault: str | None = None
        self.usage: Usage | None = None
        """After ``run``, of a child that ended by itself."""

    def cancel(self) -> None:
        """Kills the child: ``run`` raises Cancelled, at once."""
        self._cancelled = True
        self._child.kill()

    def run(self) -> ValidationReport:
        """Raises Cancelled, UnsupportedBase and Unavailable."""
        end = ""
        self._deadline = time.monotonic() + self._sandbox.start_wall_s
        try:
            with self._child as child:
                try:
                    for line in child.ask(self._request, lambda: self._deadline):
                        self._take(json.loads(line))
                except TimeoutError:
                    end = "time"
                    child.kill()
                except (TooMuchSaid, ValueError, KeyError, TypeError) as error:
                    end = f"an answer that is none ({type(error).__name__})"
                    child.kill()
        except OSError as error:
            raise _not_started(f"no process ({error.strerror})") from error
        if self._cancelled:
            raise Cancelled
        if self._stage == "start":
            log.error("the sandbox did not start (status %s): %s", child.status, _text(child.trace))
            raise _not_started(f"it ended with status {child.status} before it began")
        if self._base_fault is not None:
            raise UnsupportedBase(self._base_fault)
        if self._done is None or child.status != 0:
            self._row(self._verdict(end, child))
        failed = any(check.outcome == "fail" for check in self._checks)
        accepted = None if failed or self._done is None else self._done["accepted"]
        if accepted is None and not failed:
            self._row(_crash(self._stage, "no row that says what is wrong"))
        return ValidationReport.from_dict({"accepted": accepted, "checks": [asdict(row) for row in self._checks]})

    def _take(self, line: Mapping[str, Any]) -> None:
        if "row" in line:
            self._row(Check(**line["row"]))
        elif "base" in line:
            self._base_fault = str(line["base"])
        elif "done" in line:
            done = line["done"]
            self._done, self.usage = done, Usage(done["peak_bytes"], done["cpu_s"])
        else:
            self._deadline = time.monotonic() + self._allowances[line["stage"]].wall_s
            self._stage = line["stage"]

    def _row(self, check: Check) -> None:
        self._checks.append(check)
        if self._on_check is not None:
            self._on_check(check)

    def _verdict(self, end: str, child: Child) -> Check:
        stage, status = self._stage, child.status
        allowed = next(found for name, found in self._allowances.items() if name == stage)
        if end == "time":
            what = f"reading its {stage} took over {allowed.wall_s:.0f} s; make the files simpler"
            return Check.fail("sandbox.time", what, None, allowed.wall_s)
        if status in _TOO_LONG:
            what = f"reading its {stage} took over {allowed.cpu_s:.3g} s of processor time; make the files simpler"
            return Check.fail("sandbox.time", what, None, allowed.cpu_s)
        if status == OUT_OF_MEMORY or (status == -signal.SIGABRT and _RUST_OUT_OF_MEMORY in child.trace):
            what = f"reading its {stage} wanted over {allowed.data_bytes} bytes of memory; make the files simpler"
            return Check.fail("sandbox.memory", what, None, allowed.data_bytes)
        if status == -signal.SIGKILL and not end:
            what = f"reading its {stage} was ended by the system, as where memory runs out; make the files simpler"
            return Check.fail("sandbox.memory", what, None, allowed.data_bytes)
        log.warning("the sandbox died in %s (status %s, %s): %s", stage, status, end, _text(child.trace))
        return _crash(stage, end or _how(status))


def _crash(stage: str, how: str) -> Check:
    return Check.fail("sandbox.crash", f"reading its {stage} ended with {how}; save the adapter again")


def _how(status: int | None) -> str:
    if status is not None and status < 0:
        return f"signal {-status}"
    return f"status {status}"


def _not_started(why: str) -> Unavailable:
    return Unavailable(f"adapters cannot be validated now: the sandbox did not start, {why}; try again")


def _text(trace: bytes) -> str:
    return trace.decode("utf-8", "backslashreplace")


__all__ = ["CHILDREN", "Cancelled", "Examination", "OnCheck", "Usage", "examine", "examine_async"]
