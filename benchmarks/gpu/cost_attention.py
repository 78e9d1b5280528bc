"""Paged attention against what this card's memory and matrix units do at best."""

from __future__ import annotations

import gc

import torch
from torch import Tensor

from gpu.ceilings import Ceilings, measure
from gpu.log import Figure, Log
from gpu.machine import Machine, captured, interleaved
from gpu.sizes import Sizes
from lorry_kernels.ops.decode_plan import DecodePlan
from lorry_kernels.ops.paged_decode import DecodeWorkspace, paged_decode
from lorry_kernels.ops.paged_prefill import paged_prefill
from lorry_kernels.ops.prefill_plan import PrefillPlan

_COLD_BYTES = 1 << 30
"""Layers of one graph have at least so much KV between them: more than any card's L2."""
_MOST_LAYERS = 16


def run(machine: Machine, sizes: Sizes, log: Log) -> None:
    ceilings = measure(machine, sizes)
    log.note(f"{machine.name}: {ceilings.to_json()}")
    with torch.inference_mode():
        for sequences, keys in sizes.cached:
            with log.trying(f"decode, {sequences} x {keys} keys"):
                _decode(machine, sizes, log, ceilings, sequences, keys)
            gc.collect()
        for tokens, keys in sizes.chunks:
            with log.trying(f"prefill of {tokens} behind {keys - tokens}"):
                _prefill(machine, sizes, log, ceilings, tokens, keys)
            gc.collect()


class _Cache:
    """Pages of an engine's arena, ``[P, L, 2, KVH, page, D]``, full of noise and in no order."""

    def __init__(self, machine: Machine, sizes: Sizes, sequences: int, keys: int) -> None:
        shape, page = sizes.shape, sizes.page_tokens
        self.each = -(-keys // page)
        one = 2 * shape.kv_heads * shape.head_dim * machine.dtypes[0].itemsize
        self.layer_bytes = sequences * keys * one
        wanted = -(-_COLD_BYTES // self.layer_bytes)
        self.layers = max(1, min(_MOST_LAYERS, wanted, sizes.layers))
        size = (sequences * self.each, self.layers, 2, shape.kv_heads, page, shape.head_dim)
        self.arena = torch.empty(size, dtype=machine.dtypes[0], device=machine.device).normal_()
        order = torch.randperm(sequences * self.each, generator=torch.Generator().manual_seed(1))
        self.table = order.view(sequences, self.each).to(machine.device, torch.int32)

    def layer(self, at: int) -> tuple[Tensor, Tensor]:
        return self.arena[:, at, 0], self.arena[:, at, 1]


def _queries(machine: Machine, sizes: Sizes, tokens: int) -> Tensor:
    size = (tokens, sizes.shape.heads, sizes.shape.head_dim)
    return torch.empty(size, dtype=machine.dtypes[0], device=machine.device).normal_()


def _decode(machine: Machine, sizes: Sizes, log: Log, ceilings: Ceilings, sequences: int, keys: int) -> None:
    cache, q = _Cache(machine, sizes, sequences, keys), _queries(machine, sizes, sequences)
    device = machine.device
    plan = DecodePlan.allocate(sequences, cache.each, sizes.page_tokens, device=device)
    workspace = DecodeWorkspace.allocate(plan.capacity, q.shape[1], q.shape[2], device=device)
    lengths = torch.full((sequences,), keys, dtype=torch.int32, device=device)
    plan.fill(lengths)
    out = torch.empty_like(q)

    def body() -> tuple[Tensor, ...]:
        for at in range(cache.layers):
            paged_decode(q, *cache.layer(at), cache.table, plan, workspace, out=out)
        return (out,)

    graph = captured(machine, body)
    found = interleaved(machine, {"decode": graph.run}, sizes.rounds, cold=True)["decode"]
    one = found.median / cache.layers
    share = ceilings.microseconds(cache.layer_bytes) / one
    least = sizes.targets.get("decode", 0.0) if cache.layer_bytes >= 64e6 else 0.0
    log.figure(
        Figure(
            f"decode attention, {sequences} x {keys} keys, {cache.layer_bytes / 1e6:.0f} MB",
            cache.layer_bytes / one / 1e6,
            "TB/s",
            f"memory's {ceilings.bytes_s / 1e12:.2f} TB/s",
            share,
            f">= {least:g}" if least else "",
            share >= least if least else None,
            {"us": one, "layers": float(cache.layers)},
        )
    )


def _prefill(machine: Machine, sizes: Sizes, log: Log, ceilings: Ceilings, tokens: int, keys: int) -> None:
    cache, q = _Cache(machine, sizes, 1, keys), _queries(machine, sizes, tokens)
    shape, device = sizes.shape, machine.device
    plan = PrefillPlan.allocate(tokens, 1, shape.heads, shape.kv_heads, shape.head_dim, device=device)
    plan.fill(*(torch.tensor(one, dtype=torch.int32, device=device) for one in ([0, tokens], [keys])))
    out = torch.empty_like(q)

    def body() -> tuple[Tensor, ...]:
        for at in range(cache.layers):
            paged_prefill(q, *cache.layer(at), cache.table, plan, out=out)
        return (out,)

    graph = captured(machine, body)
    found = interleaved(machine, {"prefill": graph.run}, sizes.rounds)["prefill"]
    one = found.median / cache.layers
    seen = sum(range(keys - tokens + 1, keys + 1))
    flop_s = 4 * shape.heads * shape.head_dim * seen / one * 1e6
    share, least = flop_s / ceilings.flop_s, sizes.targets.get("prefill", 0.0)
    log.figure(
        Figure(
            f"prefill attention, {tokens} behind {keys - tokens}",
            flop_s / 1e12,
            "TFLOP/s",
            f"matmul's {ceilings.flop_s / 1e12:.0f} TFLOP/s",
            share,
            f">= {least:g}" if least else "",
            share >= least if least else None,
            {"us": one, "layers": float(cache.layers)},
        )
    )


__all__ = ["run"]
