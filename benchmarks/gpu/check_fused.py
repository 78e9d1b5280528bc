"""Norms, rotary with the cache write, the SwiGLU gate, embeddings and input gains on the device against float64."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from gpu.bounds import LORA, ONE, ROTARY, of_bound, same_bits
from gpu.log import Log
from gpu.machine import Machine
from gpu.sizes import Heads, Sizes
from lorry_kernels.cpu import rotary_tables
from lorry_kernels.ops.embedding import OwnMatrices, OwnRows, embed, embedding_planes, replace_rows
from lorry_kernels.ops.expand import ExpandPlan, expand
from lorry_kernels.ops.input_gain import input_gain, take_gained
from lorry_kernels.ops.launch import architecture
from lorry_kernels.ops.own_weights import OwnWeights
from lorry_kernels.ops.rms_norm import rms_norm
from lorry_kernels.ops.rotary import HeadNorms, Pages, rotary
from lorry_kernels.ops.routing import Routing, checked_slots, route
from lorry_kernels.ops.silu_mul import silu_mul
from lorry_kernels.reference import rms_norm_reference, rotary_reference, silu_mul_reference

_EPS = 1e-5
_TOKENS = 7
_SLOTS = (0, -1, 1, 2, 0, 2, 9)
"""Of the tokens: slots 0 and 2 have what 1 has not; there is no slot 9."""


def run(machine: Machine, sizes: Sizes, log: Log) -> None:
    cases: list[tuple[str, Callable[[], None]]] = []
    for dtype in machine.dtypes:
        made = _Fused(machine, dtype, log)
        cases += [(f"rms_norm {size}", partial(made.norm, size)) for size in sizes.hidden]
        cases += [(f"rotary {heads.name}", partial(made.rotary, heads)) for heads in sizes.decode]
        cases += [("silu_mul", partial(made.silu, sizes.wide))]
        cases += [("input_gain", partial(made.gain, sizes.hidden[0]))]
        cases += [("embedding", partial(made.embedding, sizes.hidden[0]))]
    for name, case in cases:
        with log.trying(name):
            case()


class _Fused:
    def __init__(self, machine: Machine, dtype: torch.dtype, log: Log) -> None:
        self.device, self.dtype, self.log = machine.device, dtype, log
        self.short = "bf16" if dtype == torch.bfloat16 else "fp16"

    def noise(self, *shape: int, seed: int = 0, dtype: torch.dtype | None = None) -> Tensor:
        """On the CPU."""
        made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
        return made.to(dtype or self.dtype)

    def norm(self, size: int) -> None:
        """With a residual, own weights and rows out of a wider buffer."""
        name = f"rms_norm {size} {self.short}"
        x, weight, residual = self.noise(_TOKENS, size + 8)[:, 8:], self.noise(size, seed=1), self.noise(_TOKENS, size)
        own, vectors = self._own(size)
        weights = [own.get(slot, weight.float()) for slot in _SLOTS]
        want, held = rms_norm_reference(x, weights, _EPS, residual)

        def once(rows: Sequence[int]) -> tuple[Tensor, Tensor]:
            moved, kept = x[rows].to(self.device), residual[rows].to(self.device)
            given = self._given(vectors, [_SLOTS[row] for row in rows])
            return rms_norm(moved, weight.to(self.device), _EPS, residual=kept, own=given), kept

        out, kept = once(range(_TOKENS))
        self.log.check(name, of_bound(out, want, ONE))
        self.log.equal(f"{name}: residual + x", same_bits(kept, held))
        alone = torch.cat([once([row])[0] for row in range(_TOKENS)])
        self.log.equal(f"{name}: alone = in the batch", same_bits(alone, out))

    def rotary(self, heads: Heads) -> None:
        """Heads of one qkv buffer, normed with own weights, turned, k and v into their pages."""
        kv, dim, name = heads.kv_heads, heads.dim, f"rotary {heads.name} {self.short}"
        count = kv * heads.group
        qkv = self.noise(_TOKENS, count + 2 * kv, dim)
        position = [(977 * i + 3) % 4000 for i in range(_TOKENS)]
        frequencies = (500_000.0 ** (-torch.arange(0, dim, 2) / dim)).float()
        cos, sin = rotary_tables(frequencies, 4000)
        q_weight, k_weight = self.noise(dim, seed=5), self.noise(dim, seed=6)
        own, vectors = self._own(dim)

        def want(x: Tensor, weight: Tensor) -> Tensor:
            weights = [own.get(slot, weight.float()) for slot in _SLOTS for _ in range(x.shape[1])]
            normed = rms_norm_reference(x.reshape(-1, dim), weights, _EPS)[0].view(x.shape)
            return rotary_reference(normed, position, frequencies.tolist())

        want_q, want_k = want(qkv[:, :count], q_weight), want(qkv[:, count : count + kv], k_weight)
        arena = torch.full((4, 2, 2, kv, heads.page, dim), float("nan"), dtype=self.dtype, device=self.device)
        keys, values = arena[:, 1, 0], arena[:, 1, 1]
        places = random.Random(dim).sample(range(4 * heads.page), _TOKENS - 1)
        slot = torch.tensor([*places, -1], device=self.device)
        moved = qkv.to(self.device)
        q, k, v = moved[:, :count], moved[:, count : count + kv], moved[:, count + kv :]
        given = self._given(vectors, _SLOTS)
        norms = HeadNorms(q_weight.to(self.device), k_weight.to(self.device), _EPS, given, given)
        half = dim // 2
        rotary(
            q,
            k,
            torch.tensor(position, device=self.device),
            cos[:, :half].contiguous().to(self.device),
            sin[:, half:].contiguous().to(self.device),
            norms=norms,
            pages=Pages(v, keys, values, slot),
        )
        self.log.check(f"{name}: q", of_bound(q.flatten(0, 1), want_q.flatten(0, 1), ROTARY))
        at = torch.tensor(places, device=self.device)
        found = keys[at // heads.page, :, at % heads.page]
        self.log.check(f"{name}: k in its pages", of_bound(found.flatten(0, 1), want_k[:-1].flatten(0, 1), ROTARY))
        written = values[at // heads.page, :, at % heads.page]
        self.log.equal(f"{name}: v in its pages", same_bits(written, qkv[:-1, count + kv :]))
        finite = int(torch.isfinite(arena).sum())
        self.log.equal(f"{name}: nothing else is written", finite == 2 * (_TOKENS - 1) * kv * dim, f"{finite} values")

    def silu(self, wide: int) -> None:
        gate_up = self.noise(_TOKENS, 2 * wide) * 3
        out = silu_mul(gate_up.to(self.device))
        want = silu_mul_reference(gate_up)
        self.log.check(f"silu_mul {wide} {self.short}", of_bound(out, want, ONE))

    def gain(self, size: int) -> None:
        """One rounding; bit for bit where the slot has none."""
        x, (own, vectors) = self.noise(_TOKENS, size), self._own(size)
        routing = self._routing()
        out = torch.empty_like(x, device=self.device)
        flat, offset = self._moved(vectors)
        input_gain(x.to(self.device), out, flat, offset, routing)
        want = torch.stack(
            [row.double() * own.get(slot, torch.ones(size)) for row, slot in zip(x, _SLOTS, strict=True)]
        )
        self.log.check(f"input_gain {size} {self.short}", of_bound(out, want, ONE))
        plain = [at for at, slot in enumerate(_SLOTS) if slot not in own]
        self.log.equal(f"input_gain {size} {self.short}: others keep their bits", same_bits(out[plain], x[plain]))
        # Of a slice's columns in a wider y.
        y, product = self.noise(_TOKENS, size + 32), self.noise(_TOKENS, size)
        taken = y.to(self.device)
        take_gained(taken[:, 16 : size + 16], product.to(self.device), offset, routing)
        gained = [at for at, slot in enumerate(_SLOTS) if slot in own]
        y[gained, 16 : size + 16] = product[gained]
        self.log.equal(f"take_gained {size} {self.short}: rows with a gain, no others", same_bits(taken, y))

    def embedding(self, hidden: int) -> None:
        """Slot 0 has a matrix, slot 1 LoRA of rank 20, slot 2 two rows of its own."""
        name, ids_of, routing = f"embedding {hidden} {self.short}", 50, self._routing()
        weight, larger = self.noise(ids_of, hidden), self.noise(ids_of + 6, hidden, seed=1)
        arena, (matrix, a_low, a_high, b_low, b_high), lora = self._embedding_arena(larger, ids_of, hidden)
        ids = torch.tensor([ids_of + 5, 3, 7, 9, 0, 4, 49], device=self.device)
        out = torch.empty(_TOKENS, hidden, dtype=self.dtype, device=self.device)
        embed(
            ids,
            weight.to(self.device),
            out,
            routing,
            OwnMatrices(arena, self._places(matrix, -1, -1), self._places(ids_of + 6, 0, 0)),
        )
        want = torch.stack(
            [(larger if slot == 0 else weight)[int(at)] for at, slot in zip(ids, _SLOTS, strict=True)]
        ).double()
        self.log.equal(f"{name}: own matrices", same_bits(out, want.to(self.dtype)))
        plan = ExpandPlan.of("decode", architecture(self.device), [hidden], 2, 1, self.dtype, self.device)
        planes = torch.full((1, 1, _TOKENS, 32), float("nan"), device=self.device)
        a_offset = self._places(-1, -1, a_low, a_high, -1, -1).view(3, 1, 2)
        b_offset = self._places(-1, -1, b_low, b_high, -1, -1).view(3, 1, 2)
        embedding_planes(ids, arena, a_offset, self._places(0, ids_of, 0), routing, planes)
        scale = torch.full((3, 1), 0.5, device=self.device)
        expand(out, planes, arena, b_offset, scale, routing, plan)
        a, b = lora
        for token, slot in enumerate(_SLOTS):
            if slot == 1:
                want[token] += 0.5 * (b.double() @ a.double()[int(ids[token])])
        self.log.check(f"{name}: LoRA by id", of_bound(out, want, LORA))
        own_rows = self.noise(2, hidden, seed=9, dtype=torch.float32)
        row_of = torch.full((ids_of,), -1, dtype=torch.int32)
        row_of[9], row_of[4] = 1, 0
        flat = own_rows.flatten().to(self.device)
        own = OwnRows(
            row_of.to(self.device), self._places(-1, -1, 0), self._places(0, 0, ids_of), flat, self._places(0, 0, 0)
        )
        replace_rows(out, ids, routing, own)
        for token, (at, slot) in enumerate(zip(ids.tolist(), _SLOTS, strict=True)):
            if slot == 2 and row_of[at] >= 0:
                want[token] = own_rows[int(row_of[at])].double()
        self.log.check(f"{name}: own rows", of_bound(out, want, LORA))

    def _embedding_arena(
        self, larger: Tensor, ids_of: int, hidden: int
    ) -> tuple[Tensor, Sequence[int], tuple[Tensor, Tensor]]:
        """(arena on the device, where the matrix, both chunks of A and both of B begin, (A, B) of rank 32)."""
        a, b = self.noise(ids_of, 32, seed=3), self.noise(hidden, 32, seed=4) / 8
        a[:, 20:], b[:, 20:] = 0, 0
        pieces = [larger, a[:, :16], a[:, 16:], b[:, :16], b[:, 16:]]
        begins, end, step = [], 0, 128 // self.dtype.itemsize
        for piece in pieces:
            begins.append(end)
            end += (-(-piece.numel() // step) + 1) * step
        arena = torch.full((end,), float("nan"), dtype=self.dtype)
        for begin, piece in zip(begins, pieces, strict=True):
            arena[begin : begin + piece.numel()] = piece.flatten()
        return arena.to(self.device), begins, (a, b)

    def _places(self, *at: int) -> Tensor:
        return torch.tensor(at, dtype=torch.int64, device=self.device)

    def _routing(self) -> Routing:
        slots = [slot if slot < 3 else -1 for slot in _SLOTS]
        routing = Routing.allocate("decode", _TOKENS, 3, self.device)
        zeros = torch.zeros(_TOKENS, dtype=torch.int64, device=self.device)
        route(checked_slots(slots, 3).to(self.device), zeros, zeros[:3].contiguous(), routing)
        return routing

    def _own(self, size: int) -> tuple[dict[int, Tensor], tuple[Tensor, Tensor]]:
        """Vectors of slots 0 and 2, NaN between them; (vectors, offset) on the CPU."""
        step = -(-size // 32) * 32 + 32
        flat, offset = torch.full((2 * step + 32,), float("nan")), torch.tensor([32, -1, step + 32])
        own = {slot: self.noise(size, seed=7 + slot, dtype=torch.float32) for slot in (0, 2)}
        for slot, values in own.items():
            flat[int(offset[slot]) : int(offset[slot]) + size] = values
        return own, (flat, offset)

    def _moved(self, vectors: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return vectors[0].to(self.device), vectors[1].to(self.device)

    def _given(self, vectors: tuple[Tensor, Tensor], slots: Sequence[int]) -> OwnWeights:
        flat, offset = self._moved(vectors)
        return OwnWeights(flat, offset, torch.tensor(list(slots), dtype=torch.int32, device=self.device))


__all__ = ["run"]
