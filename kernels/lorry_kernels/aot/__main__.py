"""``python -m lorry_kernels.aot``: compile what is shipped, for cards that are not here, and judge the code.

Exit status: 0 where everything holds, 1 where anything is in breach, 2 for a bad call.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lorry_kernels.aot.build import ARCHES, EVERY_SHAPE, Expect
from lorry_kernels.aot.gate import Breach, judge
from lorry_kernels.aot.report import Row, summary, table, to_json

if TYPE_CHECKING:
    from lorry_kernels.aot.catalogue import Job
    from lorry_kernels.aot.measure import Measured


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table (unless told to be quiet), then the breaches, then a count. Progress goes to stderr."""
    options = _parser().parse_args(arguments)
    os.environ.pop("TRITON_INTERPRET", None)  # This process compiles; the interpreter's kernels cannot be.
    with tempfile.TemporaryDirectory(prefix="lorry-triton-") as folder:
        os.environ["TRITON_CACHE_DIR"] = folder  # Readings are kept, the compiler's own files (megabytes) are not.
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    import triton

    from lorry_kernels.aot import catalogue
    from lorry_kernels.aot.compile import fingerprint
    from lorry_kernels.aot.measure import default_cache, measure

    modules = options.module or catalogue.ops_modules()
    shapes = [shape for shape in EVERY_SHAPE if shape.name in options.shape]
    every = list(catalogue.jobs(modules, shapes, options.arch))
    groups: dict[tuple[str, Expect], list[Job]] = {}
    rows: list[Row] = []
    for job in every:
        if options.op and job.build.op not in options.op:
            continue
        try:
            groups.setdefault((fingerprint(job.build, job.arch), job.build.expect), []).append(job)
        except ValueError as error:  # The build does not fit its kernel.
            rows.append(
                _broken(job, "build", str(error).removeprefix("build: "), "make builds() say what the wrapper launches")
            )
    taken = _sample(list(groups.values()), options.sample)
    if not taken and not rows:
        print("nothing to compile: no module has builds() that fit --module, --op, --shape and --arch", file=sys.stderr)
        return 2
    cache = None if options.no_cache else options.cache or default_cache()
    show = _Progress(len(taken))
    measured = measure([group[0] for group in taken], processes=options.jobs, cache=cache, progress=show)
    show.end()
    rows += [_row(group, measured[group[0]]) for group in taken]
    lost = () if options.op else catalogue.uncovered(modules, every)
    if not options.quiet:
        print(table(rows))
    print(summary(rows, lost))
    if options.json:
        options.json.write_text(to_json(rows, lost, triton.__version__))
    return 1 if lost or any(row.breaches for row in rows) else 0


def _row(group: list[Job], measured: Measured) -> Row:
    build, arch = group[0].build, group[0].arch
    if measured.resources is None:
        return _broken(group[0], "compiler", measured.error or "no message", "mend the kernel where the message points")
    shapes = tuple(dict.fromkeys(job.shape.name for job in group))
    breaches = judge(measured.resources, build.expect, arch)
    return Row(build.op, build.label, arch, shapes, build.expect, measured.resources, breaches)


def _broken(job: Job, rule: str, figure: str, remedy: str) -> Row:
    """A build without code."""
    build, breach = job.build, Breach(rule, figure, "code", remedy)
    return Row(build.op, build.label, job.arch, (job.shape.name,), build.expect, None, (breach,))


def _sample(groups: list[list[Job]], count: int) -> list[list[Job]]:
    """``count`` of each kernel, spread over its builds of all architectures, the next kernel's shifted; 0: all."""
    if not count:
        return groups
    kernels: dict[str, list[list[Job]]] = {}
    for group in groups:
        kernels.setdefault(f"{group[0].module}.{group[0].build.kernel.__name__}", []).append(group)
    taken = []
    for number, found in enumerate(kernels.values()):
        shift = number / 3 % 1
        taken += [found[place] for place in sorted({int((part + shift) * len(found) / count) for part in range(count)})]
    return taken


class _Progress:
    """On a terminal one line that is rewritten, elsewhere a line now and then."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._begun = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._step = max(1, total // 10)

    def __call__(self, done: int, job: Job) -> None:
        line = f"{done}/{self._total} compiled, {time.monotonic() - self._begun:.0f} s, {job.build.op} {job.arch}"
        if self._terminal:
            print(f"\r{line:<78.78}", end="", file=sys.stderr, flush=True)
        elif done % self._step == 0 or done == self._total:
            print(line, file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._terminal:
            print(file=sys.stderr)


def _parser() -> argparse.ArgumentParser:
    names = [shape.name for shape in EVERY_SHAPE]
    parser = argparse.ArgumentParser(prog="python -m lorry_kernels.aot", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--arch", nargs="+", choices=ARCHES, default=list(ARCHES), help="of these cards (all)")
    parser.add_argument("--shape", nargs="+", choices=names, default=names, help="of these models (all)")
    parser.add_argument("--op", nargs="+", default=[], help="of these ops alone (all)")
    parser.add_argument("--module", nargs="+", default=[], help="of these modules (all of lorry_kernels.ops)")
    parser.add_argument(
        "--sample", type=_count, default=0, metavar="N", help="N builds of each kernel, over all cards (all)"
    )
    parser.add_argument("--jobs", type=_count, default=2, help="processes (2)")
    parser.add_argument("--quiet", action="store_true", help="print breaches and their count, no table")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the whole table there as JSON")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="of readings (below XDG_CACHE_HOME)")
    parser.add_argument("--no-cache", action="store_true", help="compile everything anew")
    return parser


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"is {number}, must be at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
