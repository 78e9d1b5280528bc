"""Block tables on the device: a row a sequence, of which only what is new is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from lorry.errors import InternalError
from lorry.ids import PageId, SequenceId


class BlockTableMirror:
    """``table`` int32 ``[rows + 1, pages]``: pages of the device's arena; the row behind the last is no sequence's and
    holds zeros. One thread owns it."""

    def __init__(self, rows: int, pages: int, physical: Callable[[PageId], int], device: torch.device) -> None:
        """``physical``: the arena's page behind an id (``PageMap.page``)."""
        self.table: Tensor = torch.zeros(rows + 1, pages, dtype=torch.int32, device=device)
        self._physical = physical
        self._free = list(range(rows - 1, -1, -1))
        self._rows: dict[SequenceId, int] = {}
        self._known: dict[SequenceId, tuple[PageId, ...]] = {}
        self._changes: list[tuple[int, int, int]] = []

    @property
    def nobody(self) -> int:
        """The row for padding."""
        return self.table.shape[0] - 1

    def row(self, sequence: SequenceId, pages: tuple[PageId, ...]) -> int:
        """The sequence's row, which holds ``pages`` after the next ``flush``. Raises InternalError where there are more
        sequences or pages than rows or columns."""
        row = self._rows.get(sequence)
        if row is None:
            if not self._free:
                raise InternalError(f"more than {self.nobody} sequences have block tables on the device")
            row = self._rows[sequence] = self._free.pop()
        known = self._known.get(sequence, ())
        if len(pages) > self.table.shape[1]:
            raise InternalError(f"sequence {sequence} has {len(pages)} pages, over {self.table.shape[1]}")
        same = len(known) if pages[: len(known)] == known else 0
        if same < len(pages):
            self._changes.extend((row, at, self._physical(pages[at])) for at in range(same, len(pages)))
        if same < len(pages) or len(known) > len(pages):
            self._known[sequence] = pages
        return row

    def drop(self, sequences: Iterable[SequenceId]) -> None:
        """Their rows may be others'. What is still on the way to one of them is sent, and then written over."""
        for sequence in sequences:
            row = self._rows.pop(sequence, None)
            if row is not None:
                self._known.pop(sequence, None)
                self._free.append(row)

    def flush(self) -> None:
        """Enqueues what changed since the last one: one copy and one scatter, whatever the number of sequences."""
        if not self._changes:
            return
        last = {(row, at): value for row, at, value in self._changes}  # a scatter has no order
        flat = torch.tensor([[row, at, value] for (row, at), value in last.items()], dtype=torch.int64)
        rows, columns, values = upload(flat.t().contiguous(), self.table.device).unbind(0)
        self.table.index_put_((rows, columns), values.to(torch.int32))
        self._changes.clear()


def upload(host: Tensor, device: torch.device) -> Tensor:
    """To the device on the current stream, without waiting: torch keeps the pinned block until it was read."""
    if device.type != "cuda":
        return host
    return host.pin_memory().to(device, non_blocking=True)


def packed(rows: Sequence[Sequence[int]]) -> Tensor:
    """int64 on the host, one list a row."""
    return torch.tensor(rows, dtype=torch.int64)


__all__ = ["BlockTableMirror", "packed", "upload"]
