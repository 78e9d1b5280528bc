"""What it saves that a step's host work runs beside the next step, on a device that only takes time.

    python benchmarks/bench_overlap.py [--rows 16 64] [--device-ms 3.0] [--rounds 5] [--json PATH]

The whole engine in this process (scheduler, tokenizer, delivery to readers) with a runner whose device is a clock: a
step's results are there so many milliseconds after it was submitted, as on a GPU that works by itself. Each round times
the same requests once with tokens post-processed before the next step and once beside it; ``times`` is the median over
rounds of the ratio. It says what the host's part costs here, and nothing of any card.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine_runs import add_base_option, ask, chosen_base, engine_config
from reporting import keep, parser_of, show

from lorry.config import EngineConfig, MemoryConfig
from lorry.engine.build import build
from lorry.engine.local import LocalEngine
from lorry.engine.plan_runner import PlanRunner
from lorry.scheduler.plan import SequenceResult, SequenceStep

PROMPT, TOKENS = 30, 200


def be_a_clock(runner: PlanRunner[Any], seconds: float) -> None:
    """Tokens are letters by their place; nothing is computed."""

    def run(steps: Sequence[SequenceStep]) -> Any:
        done_at = time.perf_counter() + seconds

        def results() -> list[SequenceResult]:
            time.sleep(max(0.0, done_at - time.perf_counter()))
            return [result_of(step) for step in steps]

        return results

    def result_of(step: SequenceStep) -> SequenceResult:
        tokens = (40 + step.start % 50,) * step.logit_rows
        for token in tokens:
            runner._sequences[step.sequence].append(token)
        return SequenceResult(step.sequence, tokens, step.adapter)

    runner._run = run  # type: ignore[method-assign]  # in place of a device


async def milliseconds(engine: LocalEngine, rows: int) -> float:
    """Of a step in which all of ``rows`` requests decode."""
    began = time.perf_counter()
    await asyncio.gather(*(ask(engine, range(40, 40 + PROMPT), TOKENS) for _ in range(rows)))
    return (time.perf_counter() - began) / TOKENS * 1e3


async def compare(config: EngineConfig, rows: int, device_ms: float, rounds: int) -> dict[str, Any]:
    config = replace(config, scheduler=replace(config.scheduler, max_sequences=rows, token_budget=2048))
    built = build(config)
    engine = built.open()
    try:
        await engine.info()
        runner = built.parts.core._runner
        be_a_clock(runner, device_ms / 1e3)
        found: dict[bool, list[float]] = {False: [], True: []}
        for _ in range(rounds):
            for overlaps, taken in found.items():
                runner.overlaps = overlaps
                taken.append(await milliseconds(engine, rows))
    finally:
        await engine.close()
    ratios = [one / other for one, other in zip(found[False], found[True], strict=True)]
    before, beside = (statistics.median(taken) for taken in found.values())
    return {
        "rows": rows,
        "device_ms": device_ms,
        "step_ms": round(before, 3),
        "overlapped_ms": round(beside, 3),
        "times": round(statistics.median(ratios), 3),
        "times_of_rounds": [round(ratio, 3) for ratio in ratios],
    }


def main() -> None:
    parser = parser_of(__doc__)
    add_base_option(parser)
    parser.add_argument("--rows", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--device-ms", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    memory = MemoryConfig(budget_bytes=6 << 30, page_tokens=64, max_slots=4, max_rank=64)
    with chosen_base(options) as (base, scratch):
        config = engine_config(base, scratch, tiny=options.tiny, threads=1, memory=memory)
        found = [asyncio.run(compare(config, rows, options.device_ms, options.rounds)) for rows in options.rows]
    columns = [name for name in found[0] if name != "times_of_rounds"]
    show("a step", columns, [[entry[name] for name in columns] for entry in found])
    keep({"tokens": TOKENS, "rounds": options.rounds, "steps": found}, options.json)


if __name__ == "__main__":
    main()
