"""``python -m lorry_kernels.tuning.refresh``: time candidates on the card that is here and write what is faster.

Takes minutes. Run it on a card that nobody else uses, then look at the difference and run ``make kernels-report``: the
table is part of the sources. Exit status: 0, or 2 where there is no GPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import torch

from lorry_kernels.aot.build import SHAPES, ModelShape
from lorry_kernels.ops.launch import architecture
from lorry_kernels.tuning import table
from lorry_kernels.tuning.rows import Row
from lorry_kernels.tuning.sweep import Clock, Task, sweep

_COLD_BYTES = 512 << 20
"""Written before each timing: more than any card's L2."""
_GRAPHS = 64
"""Are kept: more than an op has candidates at once."""


class DeviceClock:
    """Events around a replay of one call, caches cold: a call's own way to the card can take longer than the kernel."""

    def __init__(self, device: torch.device) -> None:
        self._cold = torch.empty(_COLD_BYTES, dtype=torch.int8, device=device)
        self._graphs: dict[Callable[[], None], torch.cuda.CUDAGraph] = {}

    def __call__(self, call: Callable[[], None]) -> float:
        graph = self._graphs.get(call)
        if graph is None:
            if len(self._graphs) >= _GRAPHS:
                self._graphs.clear()
            graph = self._graphs[call] = self._captured(call)
        begin, end = (torch.Event("cuda", enable_timing=True) for _ in range(2))
        self._cold.zero_()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1000

    def _captured(self, call: Callable[[], None]) -> torch.cuda.CUDAGraph:
        call()  # compiles
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return graph


def refresh(
    tasks: Iterable[Task],
    clock: Clock,
    *,
    arch: str,
    card: str,
    kept: Sequence[Row],
    rounds: int = 7,
    seconds: float = 600,
    now: Callable[[], float] = time.monotonic,
    say: Callable[[str], None] = print,
) -> tuple[Row, ...]:
    """``kept`` with the rows of ``tasks`` that got faster put in their places. Ends early, with what it has, after
    ``seconds``."""
    rows = {_key(row): row for row in kept}
    done: set[tuple[object, ...]] = set()
    begun = now()
    for task in tasks:
        key = (arch, task.op, task.phase, task.rank, task.k, task.n)
        if key in done:  # Another site of equal sizes.
            continue
        done.add(key)
        if now() - begun > seconds:
            say(f"{seconds:.0f} s are over; the rest keeps what it has")
            break
        outcome = sweep(task, clock, rounds=rounds)
        found = outcome.row(task, arch, card)
        changed = outcome.best != task.standing
        if changed:
            rows[key] = found
        words = f"-> {outcome.best}" if changed else "stays"
        say(f"{task.name}: {len(outcome.times)} timed, {len(outcome.rejected)} rejected, {words}; {found.note}")
    return tuple(rows.values())


def _key(row: Row) -> tuple[object, ...]:
    return (row.arch, row.op, row.phase, row.rank, row.k, row.n)


def all_tasks(shapes: Sequence[ModelShape], ops: Sequence[str], device: torch.device) -> Iterator[Task]:
    """Of each shape in full size; the attention of a head size once."""
    from lorry_kernels.tuning.workloads import Size, attention_tasks, lora_tasks

    size, heads = Size(), set()
    for shape in shapes:
        if "attention" in ops and shape.head_dim not in heads:
            heads.add(shape.head_dim)
            yield from attention_tasks(shape, size, device)
        yield from (task for task in lora_tasks(shape, size, device) if task.op in ops)


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    options = _parser().parse_args(arguments)
    if not torch.cuda.is_available():
        print("no GPU here: the table is measured on the card that it is for; run this there", file=sys.stderr)
        return 2
    device = torch.device("cuda", torch.cuda.current_device())
    shapes = [shape for shape in SHAPES if shape.name in options.shape]
    rows = refresh(
        all_tasks(shapes, options.op, device),
        DeviceClock(device),
        arch=architecture(device),
        card=torch.cuda.get_device_name(device),
        kept=table.measured(),
        rounds=options.rounds,
        seconds=options.seconds,
    )
    options.out.write_text(table.write(rows))
    print(f"{len(rows)} rows in {options.out}")
    return 0


def _parser() -> argparse.ArgumentParser:
    names, ops = [shape.name for shape in SHAPES], ["shrink", "expand", "attention"]
    here = Path(__file__).with_name(table.MEASURED_FILE)
    parser = argparse.ArgumentParser(
        prog="python -m lorry_kernels.tuning.refresh", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--shape", nargs="+", choices=names, default=["Llama-3-8B"], help="models (Llama-3-8B)")
    parser.add_argument("--op", nargs="+", choices=ops, default=ops, help="ops (all)")
    parser.add_argument("--rounds", type=int, default=7, help="timings of each candidate (7)")
    parser.add_argument("--seconds", type=float, default=600, help="begin no task after so long (600)")
    parser.add_argument("--out", type=Path, default=here, metavar="FILE", help="the table (the package's own)")
    return parser


__all__ = ["DeviceClock", "all_tasks", "main", "refresh"]

if __name__ == "__main__":
    sys.exit(main())
