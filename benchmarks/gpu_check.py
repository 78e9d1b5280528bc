"""Proves and measures the kernels and the engine's GPU backend on the card that is here.

    python3 benchmarks/gpu_check.py [--only PART ...] [--toy] [--json PATH]       (or: make gpu-check)

A bare machine will do: torch, Triton and numpy, no network, nothing installed from this tree. Ends within eight
minutes. Parts that prove something run first and at once (every op in bfloat16 and float16 against float64, bits that
must be equal, captured steps against eager ones), then figures are taken one part after the other, each against a
ceiling measured in the same process. A part has seconds of its own and says so where they run out; one that fails hides
no other. Progress as it goes, one table last, JSON under ``benchmarks/results/`` by the card's name (with ``--only`` or
``--toy``: where ``--json`` says).

``--toy`` runs the same code at toy size on a CPU, in Triton's interpreter: its times mean nothing.

Exit status: 0; 1 where a check fails, a proof did not come to its end or a part broke; 2 where this machine cannot run
it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parent
for _source in (_ROOT, _ROOT / "kernels", _ROOT / "platform", _HERE):
    if str(_source) not in sys.path:
        sys.path.insert(0, str(_source))

from gpu.log import Found  # noqa: E402  this tree is importable from here on
from gpu.parts import PARTS, passed, run_part  # noqa: E402
from gpu.processes import python_command, run_parts  # noqa: E402
from gpu.table import summary, table  # noqa: E402
from gpu.versions import problems  # noqa: E402

_WORKERS = 5


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    _choose_interpreter(options.toy)
    if options.part:
        return _child(options)
    missing = problems(options.toy)
    for problem in missing:
        print(problem, file=sys.stderr)
    if missing:
        return 2
    begun = time.monotonic()
    card = _card(options.toy)
    parts = [part for part in PARTS if not options.only or part.name in options.only]
    print(f"{card}: {', '.join(part.name for part in parts)}", flush=True)
    workers = 1 if options.toy else min(_WORKERS, max((os.cpu_count() or 1) // 2, 1))
    found = run_parts(parts, python_command(Path(__file__).resolve(), options.toy), workers=workers)
    good = all(passed(part, one) for part, one in zip(parts, found, strict=True))
    path = _path(options, card)
    if path is not None:
        _write(path, card, options.toy, time.monotonic() - begun, good, found)
    print(f"\n{card}, {time.monotonic() - begun:.0f} s: {summary(found, good)}\n")
    print(table(found), flush=True)
    return 0 if good else 1


def _child(options: argparse.Namespace) -> int:
    import torch

    torch.set_num_threads(1 if options.toy else max((os.cpu_count() or 1) // _WORKERS, 1))
    part = next(part for part in PARTS if part.name == options.part)
    found = run_part(part, options.seconds or part.seconds, toy=options.toy, path=options.found)
    return 0 if passed(part, found) else 1


def _choose_interpreter(toy: bool) -> None:
    """It is read when a kernel's module is imported."""
    if toy:
        os.environ["TRITON_INTERPRET"] = "1"
    else:
        os.environ.pop("TRITON_INTERPRET", None)


def _card(toy: bool) -> str:
    import torch

    return "interpreter" if toy else torch.cuda.get_device_name()


def _path(options: argparse.Namespace, card: str) -> Path | None:
    if options.json is not None or options.only or options.toy:
        asked: Path | None = options.json
        return asked
    name = re.sub(r"[^a-z0-9]+", "_", card.lower()).strip("_")
    return _HERE / "results" / f"gpu_{name}.json"


def _write(path: Path, card: str, toy: bool, seconds: float, good: bool, found: Sequence[Found]) -> None:
    import torch
    import triton

    result = {
        "benchmark": "gpu_check",
        "card": card,
        "toy": toy,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "cuda": torch.version.cuda or torch.version.hip,
        "seconds": round(seconds, 1),
        "passed": good,
        "parts": [one.to_json() for one in found],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written: {path}", flush=True)


def _parser() -> argparse.ArgumentParser:
    names = [part.name for part in PARTS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=None, metavar="PATH", help="write the figures here")
    parser.add_argument("--toy", action="store_true", help="at toy size, on a CPU")
    parser.add_argument("--only", nargs="+", choices=names, metavar="PART", help=f"some of: {', '.join(names)}")
    for name, kind in (("--part", str), ("--seconds", float), ("--found", Path)):
        parser.add_argument(name, type=kind, default=None, help=argparse.SUPPRESS)
    return parser


__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
