"""How long the validation of a large adapter takes, from the start of its process to the last row, and what it needs.

An adapter of about 100 MB (float32, all seven projections) as plain LoRA, as DoRA, as LoRA with biases and with a whole
head, through the process that registration uses: header, values, norms, comparison with the base, numeric probe.
"""

from __future__ import annotations

import json
import statistics
import time

import torch
from bench_adapters import write_kind
from engine_runs import add_base_option, chosen_base
from reporting import keep, parser_of, show

from lorry.adapters.sandbox.examine import Examination

RANK = {False: 80, True: 8}
"""Of the base, by whether it is the tiny one: 98 MB on SmolLM2."""
KINDS = ("lora", "dora", "lora_bias", "lm_head")


def main() -> None:
    parser = parser_of(__doc__)
    add_base_option(parser)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows: list[tuple[str, float, float, float, float]] = []
    with chosen_base(options) as (base_dir, scratch):
        config = json.loads((base_dir / "config.json").read_text(encoding="utf-8"))
        folders = {
            kind: write_kind(scratch / kind, base_dir, kind, 0, rank=RANK[options.tiny], dtype=torch.float32)
            for kind in KINDS
        }
        for kind, folder in folders.items():
            seconds, peaks, processor = [], [], []
            for _ in range(options.rounds):
                began = time.perf_counter()
                examination = Examination(folder, config, base_dir=base_dir)
                report = examination.run()
                seconds.append(time.perf_counter() - began)
                assert report.ok, [check.message for check in report.failed]
                assert examination.usage is not None
                peaks.append(examination.usage.peak_bytes / 1e6)
                processor.append(examination.usage.cpu_s)
            size = (folder / "adapter_model.safetensors").stat().st_size / 1e6
            rows.append((kind, size, statistics.median(seconds), statistics.median(processor), max(peaks)))
    columns = ("kind", "MB", "seconds", "processor seconds", "peak MB")
    show("validation of one adapter", columns, rows)
    keep({"rounds": options.rounds, "kinds": [dict(zip(columns, row, strict=True)) for row in rows]}, options.json)


if __name__ == "__main__":
    main()
