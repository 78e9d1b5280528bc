"""Runs a decoder on paged KV without an engine: any mix of sequences and lengths in one step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from lorry.ids import PageId
from lorry.layers.kv import KVView
from lorry.models.attention import plan_layers
from lorry.models.decoder import Batch, Decoder, PrefillChunk
from lorry.models.weights import load_tensors, read_spec
from lorry_kernels.cpu import route


class Driver:
    """``tables[i]`` are the pages of sequence i, dealt at random from an arena of ``pages``."""

    def __init__(
        self,
        folder: Path,
        lengths: Sequence[int],
        page_tokens: int = 8,
        dtype: torch.dtype = torch.float32,
        pages: int = 64,
    ) -> None:
        self.spec = read_spec(folder)
        self.decoder = Decoder(self.spec, load_tensors(folder, self.spec, dtype))
        self.kv = KVView.allocate(self.spec, pages, page_tokens)
        order = torch.randperm(pages, generator=torch.Generator().manual_seed(1)).tolist()
        self.tables = [[PageId(order.pop()) for _ in range(-(-length // page_tokens))] for length in lengths]
        self.kv.clear([page for table in self.tables for page in table])

    @torch.inference_mode()
    def step(self, parts: Sequence[tuple[int, int, Sequence[int]]]) -> dict[int, torch.Tensor]:
        """(sequence, first position, ids) each; returns the logits of every row, by sequence."""
        page = self.kv.page_tokens
        ordered = sorted(parts, key=lambda part: len(part[2]) > 1)
        ids: list[int] = []
        positions: list[int] = []
        pages: list[int] = []
        spans: dict[int, slice] = {}
        prefill: list[PrefillChunk] = []
        for sequence, start, tokens in ordered:
            begin, stop = len(ids), start + len(tokens)
            ids.extend(tokens)
            positions.extend(range(start, stop))
            table = self.tables[sequence]
            pages.extend(table[position // page] for position in range(start, stop))
            spans[sequence] = slice(begin, len(ids))
            if len(tokens) > 1:
                prefill.append(PrefillChunk(begin, len(ids), start, torch.tensor(table[: (stop - 1) // page + 1])))
        single = [part for part in ordered if len(part[2]) == 1]
        batch = Batch(
            ids=torch.tensor(ids),
            positions=torch.tensor(positions),
            kv_index=self.kv.write_index(pages, [position % page for position in positions]),
            decode_rows=len(single),
            decode=plan_layers(self.spec, [self.tables[s] for s, _, _ in single], [at + 1 for _, at, _ in single], page)
            if single
            else None,
            prefill=tuple(prefill),
            logit_rows=torch.arange(len(ids)),
            lora=route([(0, len(ids), ())]),
        )
        logits = self.decoder.forward(batch, self.kv, {})
        return {sequence: logits[span] for sequence, span in spans.items()}

    def run(self, ids: Sequence[int], chunks: Sequence[int], sequence: int = 0) -> torch.Tensor:
        """Logits of every position of one sequence, fed in chunks of these lengths."""
        found: list[torch.Tensor] = []
        start = 0
        for length in chunks:
            found.append(self.step([(sequence, start, ids[start : start + length])])[sequence])
            start += length
        assert start == len(ids)
        return torch.cat(found)


__all__ = ["Driver"]
