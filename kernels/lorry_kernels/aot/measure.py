"""Builds compiled and read, two at a time; what was read before is taken from a folder of small files."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from lorry_kernels.aot import flow, llir, ptx
from lorry_kernels.aot import resources as reading
from lorry_kernels.aot.catalogue import Job
from lorry_kernels.aot.compile import compile_build, fingerprint
from lorry_kernels.aot.resources import Resources, resources


@dataclass(frozen=True, slots=True)
class Measured:
    """What a job's code uses, or why there is no code: the compiler's first line."""

    resources: Resources | None
    error: str | None = None


def default_cache() -> Path:
    """``$XDG_CACHE_HOME/lorry_kernels/aot``. Files in it may be deleted at any time."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lorry_kernels" / "aot"


def measure(
    work: Sequence[Job],
    *,
    processes: int = 2,
    cache: Path | None = None,
    progress: Callable[[int, Job], None] = lambda done, job: None,
) -> dict[Job, Measured]:
    """Of every job. A compiler that takes its process with it fails its own job alone."""
    found: dict[Job, Measured] = {}

    def note(job: Job, measured: Measured) -> None:
        found[job] = measured
        progress(len(found), job)

    if processes == 1:
        for job in work:
            note(job, measure_one(job, cache))
        return found
    spawn = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(processes, mp_context=spawn) as pool:
            running = {pool.submit(measure_one, job, cache): job for job in work}
            for future in as_completed(running):
                note(running[future], future.result())
    except BrokenProcessPool:
        for job in work:
            if job not in found:
                note(job, _alone(job, cache))
    return found


def _alone(job: Job, cache: Path | None) -> Measured:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(measure_one, job, cache).result()
        except BrokenProcessPool:
            return Measured(None, "the compiler ended its process")


def measure_one(job: Job, cache: Path | None) -> Measured:
    build = job.build
    stored = cache / f"{fingerprint(build, job.arch)}-{_reader()}.json" if cache else None
    if stored and stored.is_file():
        return Measured(Resources.from_json(json.loads(stored.read_text())))
    try:
        measured = resources(build, compile_build(build, job.arch))
    except Exception as error:  # Whatever Triton, LLVM or ptxas raise: the job fails by it, and the rest is still read.
        return Measured(None, f"{type(error).__name__}: {_gist(error)}")
    if stored:
        stored.parent.mkdir(parents=True, exist_ok=True)
        fresh = stored.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(measured.to_json()))
        fresh.replace(stored)
    return Measured(measured)


def _gist(error: Exception) -> str:
    """The last line that says something; Triton's messages begin with the source and a caret."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^")]
    return lines[-1] if lines else "no message"


def _reader() -> str:
    """Changes with the code that reads assemblies, so that no older reading is taken for its own."""
    texts = [Path(module.__file__ or "").read_bytes() for module in (flow, llir, ptx, reading)]
    return hashlib.sha256(b"".join(texts)).hexdigest()[:12]


__all__ = ["Measured", "default_cache", "measure", "measure_one"]
