"""What a step of so many rows costs in bfloat16 and in float32 on this CPU, forward pass and logits, without adapters.

The two run in turn; the ratio is the median of those of equal rounds. Where the CPU has no products of bfloat16, few
rows are bound by the bytes that are read and many by the emulation: ``lorry serve --dtype auto`` chooses by the CPU's
flags, and this is why. Seconds are of the processor, on one thread: others on the machine do not count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from bench_adapters import load_spec
from engine_runs import add_base_option, chosen_base
from reporting import keep, parser_of, show

from lorry.engine.arena import AdapterArena
from lorry.engine.weight_type import cpu_flags
from lorry.ids import PageId
from lorry.layers.kv import KVView
from lorry.models.attention import plan_layers
from lorry.models.decoder import Batch, Decoder
from lorry.models.weights import load_tensors
from lorry_kernels.cpu import route

PAGE_TOKENS = 64
TYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def step_of(base_dir: Path, dtype: torch.dtype, rows: int) -> Callable[[], torch.Tensor]:
    """Each row is the last of a page of keys."""
    spec = load_spec(base_dir)
    decoder, kv = Decoder(spec, load_tensors(base_dir, spec, dtype)), KVView.allocate(spec, rows, PAGE_TOKENS)
    kv.clear([PageId(row) for row in range(rows)])
    tables = [[PageId(row)] for row in range(rows)]
    arena = AdapterArena(spec, 1, 8)
    batch = Batch(
        ids=torch.arange(rows) + 100,
        positions=torch.full((rows,), PAGE_TOKENS - 1),
        kv_index=kv.write_index([table[-1] for table in tables], [PAGE_TOKENS - 1] * rows),
        decode_rows=rows,
        decode=plan_layers(spec, tables, [PAGE_TOKENS] * rows, PAGE_TOKENS),
        prefill=(),
        logit_rows=torch.arange(rows),
        lora=route([(row, row + 1, ()) for row in range(rows)]),
    )
    return lambda: decoder.head(decoder.hidden(batch, kv, arena.sites), [])


@torch.inference_mode()
def measure(base_dir: Path, rows: int, rounds: int) -> dict[str, float]:
    steps = {name: step_of(base_dir, dtype, rows) for name, dtype in TYPES.items()}
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name, step in steps.items():
            begun = time.process_time()
            step()
            if number:  # the first touches memory
                taken[name].append(time.process_time() - begun)
    ratio = statistics.median(a / b for a, b in zip(taken["bfloat16"], taken["float32"], strict=True))
    ms = {f"{name}_ms": statistics.median(times) * 1000 for name, times in taken.items()}
    return {"rows": rows, **ms, "bfloat16_to_float32": ratio}


def main() -> None:
    parser = parser_of(__doc__)
    add_base_option(parser)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 64, 256])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with chosen_base(options) as (base_dir, _):
        found = [measure(base_dir, rows, options.rounds) for rows in options.rows]
    show("a step, one thread", list(found[0]), [list(entry.values()) for entry in found])
    known = sorted(cpu_flags() & {"avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16"})
    keep({"cpu_flags": known, "rounds": options.rounds, "steps": found}, options.json)


if __name__ == "__main__":
    main()
