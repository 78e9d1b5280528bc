"""What needs no clock of the benchmark: rows of plain LoRA do not notice what the other rows are.

Of four rows, as of eight, the kernel takes one way through the arena whatever the last row is; of three it does not,
and the same sums come in another order.
"""

from pathlib import Path

import torch
from bench_kinds import measure, mixes
from engine_runs import write_tiny


def test_plain_rows_are_the_same_bits_beside_every_kind(tmp_path: Path) -> None:
    found = measure(write_tiny(tmp_path / "base"), tmp_path, rows=4, rounds=1, dtype=torch.float32)
    assert [entry["mix"] for entry in found] == list(mixes(4))
    assert all(entry["plain_rows_bit_equal"] for entry in found), found
    assert all(entry["ms"] > 0 for entry in found)
