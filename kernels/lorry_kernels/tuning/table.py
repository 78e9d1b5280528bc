"""The table that kernels take their tiles from. Nothing is tuned while serving: a row's result must not depend on what
was timed before it, nor on the batch. So a table's change changes last bits, and is a change of the sources."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import Any, Literal, overload

from lorry_kernels.tuning.configs import AttentionConfig, Config, ExpandConfig, ShrinkConfig, from_json, to_json
from lorry_kernels.tuning.defaults import DEFAULTS
from lorry_kernels.tuning.rows import RANK_BUCKETS, Phase, Row, choose, rank_bucket

MEASURED_FILE = "measured.json"
"""Beside this module; what ``refresh`` writes. It goes before the defaults."""

INTERPRETER = "interpreter"

_trial: dict[str, Config] = {}


@overload
def lookup(arch: str, op: Literal["shrink"], k: int, n: int, rank: int, phase: Phase) -> ShrinkConfig: ...
@overload
def lookup(arch: str, op: Literal["expand"], k: int, n: int, rank: int, phase: Phase) -> ExpandConfig: ...
@overload
def lookup(arch: str, op: Literal["attention"], k: int, n: int, rank: int, phase: Phase) -> AttentionConfig: ...
def lookup(arch: str, op: str, k: int, n: int, rank: int, phase: Phase) -> Config:
    """The configuration of ``op`` on ``arch`` ("sm_90", "gfx942"; "interpreter" takes NVIDIA's defaults).

    shrink: ``k`` features of x, ``n`` 0, ``rank`` of all the A's of the site together, since a program takes chunks of
    any slice. expand: ``k`` 0, ``n`` of the narrowest slice, ``rank``. attention: ``k`` the head's size, the rest 0.
    Ranks are the largest that the caller's tables can hold, never a batch's, and count up to their bucket. Equal
    arguments give equal results as long as the process lives. Raises ValueError for a card or an op without a row.
    """
    if op in _trial:
        return _trial[op]
    return _lookup(arch, op, k, n, rank and rank_bucket(rank), phase)


@cache
def _lookup(arch: str, op: str, k: int, n: int, rank: int, phase: Phase) -> Config:
    if arch == INTERPRETER:
        found = choose(DEFAULTS, "sm", op, k, n, rank, phase)
    else:
        found = choose(measured(), arch, op, k, n, rank, phase) or choose(DEFAULTS, arch, op, k, n, rank, phase)
    if found is None:
        known = ", ".join(sorted({f"{row.op} {row.phase} on {row.arch}*" for row in DEFAULTS}))
        raise ValueError(f"arch, op, phase: the tuning table has no row for {op} {phase} on {arch}; it has {known}")
    return found.config


@contextmanager
def trial(op: str, config: Config) -> Iterator[None]:
    """Within it, ``lookup`` of ``op`` gives ``config``. For sweeps, in a process that serves nobody."""
    before = dict(_trial)
    _trial[op] = config
    try:
        yield
    finally:
        _trial.clear()
        _trial.update(before)


@cache
def measured() -> tuple[Row, ...]:
    """Rows of ``measured.json``."""
    return read(files(__package__).joinpath(MEASURED_FILE).read_text())


def read(text: str) -> tuple[Row, ...]:
    """Rows out of JSON. Raises ValueError with the number of the row that is none."""
    rows = []
    for number, stored in enumerate(json.loads(text)["rows"]):
        try:
            config = from_json(stored["op"], stored["config"])
            plain: dict[str, Any] = {name: value for name, value in stored.items() if name != "config"}
            row = Row(**plain, config=config)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"rows[{number}]: {error}; mend {MEASURED_FILE} or run refresh anew") from error
        if row.rank not in (0, *RANK_BUCKETS):
            raise ValueError(f"rows[{number}]: rank {row.rank} is no bucket, must be one of {RANK_BUCKETS}, or 0")
        rows.append(row)
    return tuple(rows)


def write(rows: Sequence[Row]) -> str:
    """JSON, a row a line, in a fixed order: a refresh shows in a diff as what it changed."""
    ordered = sorted(rows, key=lambda row: (row.arch, row.op, row.phase, row.rank, row.k or 0, row.n or 0))
    lines = [
        json.dumps(
            {
                "arch": row.arch,
                "op": row.op,
                "phase": row.phase,
                "rank": row.rank,
                "k": row.k,
                "n": row.n,
                "config": to_json(row.config),
                "note": row.note,
            }
        )
        for row in ordered
    ]
    return '{"rows": [\n' + ",\n".join(lines) + "\n]}\n"


__all__ = ["MEASURED_FILE", "lookup", "measured", "read", "trial", "write"]
