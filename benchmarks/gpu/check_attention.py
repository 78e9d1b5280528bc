"""The cache write and paged attention on the device against float64, and what they promise bit for bit."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from tests.kernels.paged import Paged, paged, rows
from torch import Tensor

from gpu.bounds import ATTENTION, of_bound, same_bits
from gpu.log import Log
from gpu.machine import Machine, captured
from gpu.sizes import Heads, Sizes
from lorry_kernels.ops.decode_plan import DecodePlan
from lorry_kernels.ops.kv_write import kv_write
from lorry_kernels.ops.paged_decode import DecodeWorkspace, paged_decode
from lorry_kernels.ops.paged_prefill import paged_prefill
from lorry_kernels.ops.prefill_plan import PrefillPlan
from lorry_kernels.reference import kv_write_reference

_REFERENCE_QUERIES = 40


def run(machine: Machine, sizes: Sizes, log: Log) -> None:
    for heads in sizes.decode:
        for dtype in machine.dtypes if heads.every_dtype else machine.dtypes[:1]:
            name = f"kv_write {_name(heads, dtype)}"
            with log.trying(name):
                _check_write(machine, log, name, heads, dtype)
    for heads in sizes.decode:
        for dtype in machine.dtypes if heads.every_dtype else machine.dtypes[:1]:
            name = f"decode {_name(heads, dtype)}"
            with log.trying(name):
                _Decode(machine, heads, dtype, sizes.decode_lengths).check(log, name)
    for heads in sizes.prefill:
        for dtype in machine.dtypes if heads.every_dtype else machine.dtypes[:1]:
            name = f"prefill {_name(heads, dtype)}"
            with log.trying(name):
                _Prefill(machine, heads, dtype, sizes.prefill_queries).check(log, name)


def _name(heads: Heads, dtype: torch.dtype) -> str:
    window = "" if heads.window is None else f" window {heads.window}"
    short = "bf16" if dtype == torch.bfloat16 else "fp16"
    return f"{heads.name}{window} {short}"


def _check_write(machine: Machine, log: Log, name: str, heads: Heads, dtype: torch.dtype) -> None:
    """Padding and places behind the pages write nothing; views of an arena, NaN elsewhere."""
    pages = 5
    arena = torch.full((pages, 3, 2, heads.kv_heads, heads.page, heads.dim), float("nan"), dtype=dtype)
    places = random.Random(1).sample(range(pages * heads.page), 20)
    slot = [*places, -1, -7, pages * heads.page, 2**40]
    k, v = (rows(len(slot), heads.kv_heads, heads.dim, dtype, seed) for seed in (1, 2))
    on_device = arena.to(machine.device)
    kv_write_reference(k, v, arena[:, 1, 0], arena[:, 1, 1], slot)
    moved = torch.tensor(slot, dtype=torch.int64, device=machine.device)
    kv_write(k.to(machine.device), v.to(machine.device), on_device[:, 1, 0], on_device[:, 1, 1], moved)
    log.equal(name, same_bits(on_device, arena))


class _Cache:
    """Pages on the device, with the strides that they have on the CPU: views of one arena."""

    def __init__(self, machine: Machine, made: Paged) -> None:
        whole = made.k_pages._base
        assert whole is not None
        self.made, self.machine = made, machine
        arena = whole.to(machine.device)
        self.k_pages, self.v_pages = arena[:, 1, 0], arena[:, 1, 1]
        self.table = made.table.to(machine.device)


class _Decode:
    def __init__(self, machine: Machine, heads: Heads, dtype: torch.dtype, lengths: Sequence[int]) -> None:
        self.heads, self.lengths, self.device = heads, list(lengths), machine.device
        made = paged(lengths, heads.kv_heads, heads.dim, heads.page, dtype, window=heads.window)
        self.cache = _Cache(machine, made)
        self.q = rows(len(lengths), heads.kv_heads * heads.group, heads.dim, dtype)
        self.moved = self.q.to(machine.device)

    def run(self, chosen: Sequence[int]) -> Tensor:
        """Rows ``chosen`` as one batch."""
        at = list(chosen)
        cache, table = self.cache, self.cache.table[at].contiguous()
        plan, workspace = self._plan(len(at))
        plan.fill(torch.tensor([self.lengths[one] for one in at], dtype=torch.int32, device=self.device))
        return paged_decode(self.moved[at], cache.k_pages, cache.v_pages, table, plan, workspace)

    def _plan(self, count: int) -> tuple[DecodePlan, DecodeWorkspace]:
        heads, device = self.heads, self.device
        plan = DecodePlan.allocate(count, self.cache.table.shape[1], heads.page, device=device, window=heads.window)
        workspace = DecodeWorkspace.allocate(plan.capacity, self.q.shape[1], heads.dim, device=device)
        workspace.partial.fill_(float("nan"))
        return plan, workspace

    def check(self, log: Log, name: str) -> None:
        every = range(len(self.lengths))
        found = self.run(every)
        made, window = self.cache.made, self.heads.window
        want = torch.cat([made.reference(self.q[row : row + 1], row, window) for row in every])
        log.check(name, of_bound(found.flatten(0, 1), want.flatten(0, 1), ATTENTION))
        log.equal(f"{name}: two runs", same_bits(self.run(every), found))
        alone = torch.cat([self.run([row]) for row in every])
        log.equal(f"{name}: alone = in the batch", same_bits(alone, found))
        self._check_graph(log, name, found)

    def _check_graph(self, log: Log, name: str, found: Tensor) -> None:
        """Captured with rows of no keys, run with the real lengths, then with a row that is padding again."""
        cache, count = self.cache, len(self.lengths)
        plan, workspace = self._plan(count)
        lengths = torch.zeros(count, dtype=torch.int32, device=self.device)

        def body() -> tuple[Tensor, ...]:
            plan.fill(lengths)
            return (paged_decode(self.moved, cache.k_pages, cache.v_pages, cache.table, plan, workspace),)

        graph = captured(cache.machine, body)
        lengths.copy_(torch.tensor(self.lengths, dtype=torch.int32))
        log.equal(f"{name}: graph = eager, lengths changed", same_bits(graph.run()[0], found))
        lengths[0] = 0
        again = graph.run()[0]
        log.equal(
            f"{name}: a padded row is zeros, the others' bits stay",
            bool((again[0] == 0).all()) and same_bits(again[1:], found[1:]),
        )


class _Prefill:
    def __init__(self, machine: Machine, heads: Heads, dtype: torch.dtype, parts: Sequence[tuple[int, int]]) -> None:
        self.heads, self.device, self.parts = heads, machine.device, list(parts)
        queries, lengths = [one for one, _ in parts], [length for _, length in parts]
        made = paged(
            lengths, heads.kv_heads, heads.dim, heads.page, dtype, window=heads.window, queries=queries, seed=2
        )
        self.cache = _Cache(machine, made)
        self.starts = [sum(queries[:at]) for at in range(len(queries) + 1)]
        self.q = rows(self.starts[-1], heads.kv_heads * heads.group, heads.dim, dtype)
        self.moved = self.q.to(machine.device)

    def run(self, pieces: Sequence[tuple[int, int, int]]) -> Tensor:
        """(sequence, first query, queries) as one step's sequences; the result in their order."""
        heads, device = self.heads, self.device
        at = [self.starts[s] + first + i for s, first, count in pieces for i in range(count)]
        starts = [sum(count for _, _, count in pieces[:end]) for end in range(len(pieces) + 1)]
        lengths = [self.parts[s][1] - self.parts[s][0] + first + count for s, first, count in pieces]
        plan = PrefillPlan.allocate(
            len(at), len(pieces), heads.kv_heads * heads.group, heads.kv_heads, heads.dim, device=device
        )
        plan.fill(*(torch.tensor(one, dtype=torch.int32, device=device) for one in (starts, lengths)))
        table = self.cache.table[[s for s, _, _ in pieces]].contiguous()
        cache = self.cache
        return paged_prefill(self.moved[at], cache.k_pages, cache.v_pages, table, plan, window=heads.window)

    def check(self, log: Log, name: str) -> None:
        whole = [(s, 0, count) for s, (count, _) in enumerate(self.parts)]
        found = self.run(whole)
        pick, made = random.Random(3), self.cache.made
        total = self.starts[-1]
        checked = sorted(pick.sample(range(total), min(total, _REFERENCE_QUERIES)))
        want = torch.cat([self._reference(made, row) for row in checked])
        log.check(name, of_bound(found[checked].flatten(0, 1), want.flatten(0, 1), ATTENTION))
        log.equal(f"{name}: two runs", same_bits(self.run(whole), found))
        filled = [piece for piece in whole if piece[2]]
        alone = torch.cat([self.run([piece]) for piece in filled])
        log.equal(f"{name}: alone = in the batch", same_bits(alone, found))
        cut = [part for s, _, n in filled for part in ((s, 0, n - n // 3), (s, n - n // 3, n // 3)) if part[2]]
        log.equal(f"{name}: cut in two = whole", same_bits(torch.cat([self.run([part]) for part in cut]), found))

    def _reference(self, made: Paged, row: int) -> Tensor:
        sequence = max(s for s, (count, _) in enumerate(self.parts) if count and self.starts[s] <= row)
        behind = self.starts[sequence] + self.parts[sequence][0] - row - 1
        part = Paged(made.k_pages, made.v_pages, made.table, made.lengths - behind)
        return part.reference(self.q[row : row + 1], sequence, self.heads.window)


__all__ = ["run"]
