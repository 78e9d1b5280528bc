"""What one adapter of another kind costs the batch that it is in.

A decode step (forward pass and logits) of so many rows, each with an adapter of its own: all plain LoRA of rank 16;
then one of them replaced by DoRA, LoRA with biases, IA3, or LoRA with a whole head; then all of them. The mixes are run
in turn, and each is stated as the median of its ratios to the plain step of the same round. The plain rows' logits are
compared too: to the last bit, they must not notice.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from bench_adapters import KINDS, load_spec, write_kind
from engine_runs import add_base_option, chosen_base
from reporting import keep, parser_of, show

from lorry.adapters.image.build import DeviceImage, build_image
from lorry.adapters.validate import validate_directory
from lorry.engine.arena import AdapterArena, SlotEntry
from lorry.ids import AdapterDigest, AdapterKey, AdapterScope, ChunkId, Generation, PageId, SlotId
from lorry.layers.adapted import extra_rows
from lorry.layers.base_tensors import BaseTensors
from lorry.layers.kv import KVView
from lorry.models.attention import plan_layers
from lorry.models.decoder import Batch, Decoder
from lorry.models.weights import load_tensors
from lorry.scheduler.plan import SlotLoad
from lorry_kernels.cpu import route

CONTEXT = 256
PAGE_TOKENS = 64
CHUNK_RANK = 8
CHUNKS = 2
"""Of one adapter."""


class Bench:
    """A decoder with ``rows`` adapters of every kind in its arena and ``rows`` sequences of CONTEXT tokens."""

    def __init__(self, base_dir: Path, scratch: Path, rows: int, dtype: torch.dtype) -> None:
        spec = load_spec(base_dir)
        base = BaseTensors(base_dir, spec, dtype)
        self._spec = spec
        self._decoder = Decoder(spec, load_tensors(base_dir, spec, dtype))
        pages = CONTEXT // PAGE_TOKENS
        self._kv = KVView.allocate(spec, rows * pages, PAGE_TOKENS)
        self._tables = [[PageId(row * pages + at) for at in range(pages)] for row in range(rows)]
        self._kv.clear([page for table in self._tables for page in table])
        self._images: dict[str, list[DeviceImage]] = {kind: [] for kind in KINDS}
        for number, (kind, row) in enumerate(itertools.product(KINDS, range(rows))):
            if kind == "lm_head" and row < rows - 1:
                continue  # one is enough, and it is large
            folder = write_kind(scratch / f"{kind}-{row}", base_dir, kind, row)
            plan = validate_directory(folder, spec, base_dir=base_dir, probe=False).plan
            assert plan is not None, f"{kind} is not served"
            digest = AdapterDigest(f"{number:064x}")
            self._images[kind].append(build_image(folder, plan, spec, torch.float32, digest, base))

    def step(self, kinds: Sequence[str | None]) -> Callable[[], torch.Tensor]:
        """A step of one row for each kind, with an arena to itself: equal adapters lie in equal places in all mixes.
        None: the base."""
        arena = AdapterArena(self._spec, CHUNKS * len(kinds), CHUNK_RANK)
        entries: list[SlotEntry | None] = []
        for row, kind in enumerate(kinds):
            entry = None
            if kind is not None:
                image = self._images[kind][min(row, len(self._images[kind]) - 1)]
                chunks = [ChunkId(row * CHUNKS + at) for at in range(-(-image.rank // CHUNK_RANK))]
                arena.load(
                    SlotLoad(
                        SlotId(row), Generation(1), AdapterKey(image.digest, AdapterScope("bench")), tuple(chunks)
                    ),
                    image,
                    0,
                )
                entry = arena.entry(SlotId(row))
            entries.append(entry)
        return self._batch(entries, arena)

    def _batch(self, entries: Sequence[SlotEntry | None], arena: AdapterArena) -> Callable[[], torch.Tensor]:
        rows, extras = len(entries), [entry.extras if entry else None for entry in entries]
        own = extra_rows([1] * rows, extras)
        batch = Batch(
            ids=torch.arange(rows) + 100,
            positions=torch.full((rows,), CONTEXT - 1),
            kv_index=self._kv.write_index([table[-1] for table in self._tables], [PAGE_TOKENS - 1] * rows),
            decode_rows=rows,
            decode=plan_layers(self._spec, self._tables, [CONTEXT] * rows, PAGE_TOKENS),
            prefill=(),
            logit_rows=torch.arange(rows),
            lora=route([(row, row + 1, entry.rows if entry else ()) for row, entry in enumerate(entries)]),
            adapted=self._decoder.adapted(own),
        )

        def step() -> torch.Tensor:
            hidden = self._decoder.hidden(batch, self._kv, arena.sites)
            return self._decoder.head(hidden, own)

        return step


def mixes(rows: int) -> dict[str, list[str | None]]:
    found: dict[str, list[str | None]] = {"plain": ["lora"] * rows, "base only": [None] * rows}
    for kind in KINDS[1:]:
        found[f"one {kind}"] = [*["lora"] * (rows - 1), kind]
    for kind in KINDS[1:4]:
        found[f"all {kind}"] = [kind] * rows
    return found


@torch.inference_mode()
def measure(base_dir: Path, scratch: Path, rows: int, rounds: int, dtype: torch.dtype) -> list[dict[str, Any]]:
    """One entry for each mix: milliseconds of a step, its ratio to the plain one, and whether the rows that are plain
    LoRA in it have the very logits that they have among their own kind."""
    bench = Bench(base_dir, scratch, rows, dtype)
    steps = {name: bench.step(mix) for name, mix in mixes(rows).items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    logits = {name: step() for name, step in steps.items()}
    for _ in range(rounds):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - began)
    plain = times["plain"]
    return [
        {
            "mix": name,
            "ms": statistics.median(mine) * 1000,
            "to_plain": statistics.median(a / b for a, b in zip(mine, plain, strict=True)),
            "plain_rows_bit_equal": "one" not in name or torch.equal(logits[name][:-1], logits["plain"][:-1]),
        }
        for name, mine in times.items()
    ]


def main() -> None:
    parser = parser_of(__doc__)
    add_base_option(parser)
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1 if options.tiny else 2)
    dtype = torch.float32 if options.tiny else torch.bfloat16
    result: dict[str, object] = {"context_tokens": CONTEXT, "rank": 16, "dtype": str(dtype), "rounds": options.rounds}
    for rows in options.rows:
        with chosen_base(options) as (base_dir, scratch):
            found = measure(base_dir, scratch, rows, options.rounds, dtype)
        show(f"a decode step of {rows} rows", list(found[0]), [list(entry.values()) for entry in found])
        result[f"{rows}_rows"] = found
    keep(result, options.json)


if __name__ == "__main__":
    main()
