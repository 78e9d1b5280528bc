"""Draws and logprobs on the device against the loops of the reference and the CPU's path."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gpu.bounds import same_bits
from gpu.log import Log
from gpu.machine import Machine
from gpu.sizes import Sizes
from lorry_kernels.cpu import RowSampling
from lorry_kernels.cpu import sample as cpu_sample
from lorry_kernels.ops.logprobs import logprobs
from lorry_kernels.ops.sampling import SamplingFilters, SamplingRows, margin_bound, sample
from lorry_kernels.reference import logprobs_reference, sample_reference, sampling_margin

_LOGPROB = 2e-4
"""Absolute: float32 sums of a whole vocabulary, against Python's floats."""
_OPEN = 1 / 8
"""Of the rows at most may lie within the bound: more, and the check would show nothing."""


def run(machine: Machine, sizes: Sizes, log: Log) -> None:
    for dtype in (*machine.dtypes, torch.float32)[: sizes.draw_dtypes]:
        short = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[dtype]
        generator = torch.Generator().manual_seed(3)
        logits = (4 * torch.randn(sizes.draws, sizes.vocabulary, generator=generator)).to(dtype)
        rows = _some_rows(sizes.draws)
        with log.trying(f"sampling {short}"):
            _check_draws(machine, log, f"sampling {short}", logits, rows)
        with log.trying(f"logprobs {short}"):
            _check_logprobs(machine, log, f"logprobs {short}", logits)


def _some_rows(count: int) -> list[RowSampling]:
    pick = random.Random(5)
    return [
        RowSampling(
            pick.choice([0.0, 0.05, 0.7, 1.0, 3.0]),
            pick.choice([0, 1, 5, 50, 3000]),
            pick.choice([1.0, 0.95, 0.5, 0.02]),
            pick.choice([0.0, 0.02, 0.3]),
            pick.getrandbits(64),
            pick.randrange(4),
            pick.randrange(1, 100_000),
        )
        for _ in range(count)
    ]


def _check_draws(machine: Machine, log: Log, name: str, logits: Tensor, rows: Sequence[RowSampling]) -> None:
    moved, given = logits.to(machine.device), _on_device(rows, machine.device)
    tokens, finite = sample(moved, given)
    from_cpu, _ = cpu_sample(logits.float(), rows)
    wrong, near = [], 0
    for at, row in enumerate(rows):
        log.watch()
        values = logits[at].float().tolist()
        if sampling_margin(values, **_asked(row)) <= 2 * margin_bound(len(values)):
            near += 1
        elif not int(tokens[at]) == from_cpu[at] == sample_reference(values, **_asked(row)):
            wrong.append(f"row {at} {row} drew {int(tokens[at])}, the CPU {from_cpu[at]}")
    log.equal(f"{name}: the CPU's tokens, {near} of {len(rows)} rows open", not wrong, "; ".join(wrong[:2]))
    log.equal(f"{name}: few rows are open", near <= max(_OPEN * len(rows), 1), f"{near} of {len(rows)}")
    log.equal(f"{name}: finite", bool(finite.all()), "a finite row is called broken")
    again, _ = sample(moved, given)
    one = [int(sample(moved[at : at + 1], _on_device([row], machine.device))[0]) for at, row in enumerate(rows)]
    log.equal(f"{name}: two runs, alone = in the batch", same_bits(again, tokens) and one == tokens.tolist())
    greedy, _ = sample(moved)
    want = [int(row.float().argmax()) for row in logits]
    log.equal(f"{name}: greedy", greedy.tolist() == want, "is not the largest with the lowest id")
    broken = moved.clone()
    broken[0, -1] = float("nan")
    found, good = sample(broken, given)
    same = not bool(good[0]) and int(found[0]) == 0 and found[1:].tolist() == tokens[1:].tolist()
    log.equal(f"{name}: a broken row is named, no other notices", same and bool(good[1:].all()))


def _check_logprobs(machine: Machine, log: Log, name: str, logits: Tensor) -> None:
    vocabulary = logits.shape[1]
    tokens = [(977 * at) % vocabulary for at in range(len(logits) - 1)] + [vocabulary]
    found, ranks = logprobs(logits.to(machine.device), torch.tensor(tokens, device=machine.device))
    worst, same = 0.0, bool(found[-1].isnan()) and int(ranks[-1]) == 0
    for at, token in enumerate(tokens[:-1]):
        values = logits[at].float().tolist()
        want, _ = logprobs_reference(values, token, 0)
        worst = max(worst, abs(float(found[at]) - want))
        before = sum(value > values[token] for value in values) + sum(
            value == values[token] for value in values[:token]
        )
        same = same and int(ranks[at]) == before + 1
    log.check(name, worst / _LOGPROB)
    log.equal(f"{name}: ranks, and an id that is none", same, "ranks differ")


def _asked(row: RowSampling) -> dict[str, Any]:
    return {
        "temperature": row.temperature,
        "top_k": row.top_k,
        "top_p": row.top_p,
        "min_p": row.min_p,
        "seed": row.seed,
        "choice": row.choice,
        "position": row.position,
    }


def _on_device(rows: Sequence[RowSampling], device: torch.device) -> SamplingRows:
    def column(of: Callable[[RowSampling], float], dtype: torch.dtype) -> Tensor:
        return torch.tensor([of(row) for row in rows], dtype=dtype, device=device)

    filters = SamplingFilters(
        column(lambda row: row.top_k, torch.int32),
        column(lambda row: row.top_p, torch.float64),
        column(lambda row: row.min_p, torch.float64),
    )
    return SamplingRows(
        column(lambda row: row.temperature, torch.float64),
        # The same 64 bits, as torch's signed type has them.
        column(lambda row: row.seed - (1 << 64) * (row.seed >> 63), torch.int64),
        column(lambda row: row.choice, torch.int64),
        column(lambda row: row.position, torch.int64),
        filters,
    )


__all__ = ["run"]
