"""The gate's table, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lorry_kernels.aot.build import Expect
from lorry_kernels.aot.gate import Breach
from lorry_kernels.aot.resources import Resources

_COLUMNS = ("arch", "regs", "stack", "spill", "shared", "mma", "loads", "verdict", "build", "shapes")


@dataclass(frozen=True, slots=True)
class Row:
    """One compiled kernel. ``build``: the op, its constants and launch; ``shapes``: models that launch it so."""

    op: str
    build: str
    arch: str
    shapes: tuple[str, ...]
    expect: Expect
    resources: Resources | None
    breaches: tuple[Breach, ...]

    @property
    def cells(self) -> tuple[str, ...]:
        found = self.resources
        verdict = "ok" if not self.breaches else f"{len(self.breaches)} breach" + "es" * (len(self.breaches) > 1)
        shapes = ", ".join(self.shapes)
        if found is None:
            return (self.arch, "-", "-", "-", "-", "-", "-", verdict, self.build, shapes)
        figures = (found.registers, found.stack_bytes, found.spills, found.shared_bytes, found.tensor_ops)
        return (self.arch, *map(str, figures), self._loads(found), verdict, self.build, shapes)

    def _loads(self, found: Resources) -> str:
        """Widths in bytes of what should be wide, as argument:count x bytes."""
        parts = []
        for name in self.expect.wide_loads_of:
            widths = found.widths.get(name)
            sizes = (widths.loads or widths.stores) if widths else {}
            parts.append(f"{name}:" + "+".join(f"{count}x{size}" for size, count in sizes.items()))
        return " ".join(parts) or "-"

    @property
    def complaints(self) -> Iterable[str]:
        """One line a breach: op and constants, shapes, architecture, figure, limit, remedy."""
        for breach in self.breaches:
            yield f"{self.build} [{', '.join(self.shapes)}] on {self.arch}: {breach}"


def table(rows: Sequence[Row]) -> str:
    """Fixed columns first, the long ones last."""
    cells = [_COLUMNS, *(row.cells for row in rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(_COLUMNS))]
    lines = []
    for row in cells:
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return "\n".join(lines)


def summary(rows: Sequence[Row], uncovered: Sequence[str]) -> str:
    """Breaches, one a line, and a last line that counts."""
    lines = [line for row in rows for line in row.complaints]
    lines += [f"{name}: a kernel that is in no build; yield it from the module's builds()" for name in uncovered]
    broken = sum(bool(row.breaches) for row in rows)
    lines.append(f"{len(rows)} kernels compiled, {broken} in breach, {len(uncovered)} without a build")
    return "\n".join(lines)


def to_json(rows: Sequence[Row], uncovered: Sequence[str], triton: str) -> str:
    """Schema 1: every row with its resources and breaches."""
    drawn: dict[str, Any] = {
        "schema": 1,
        "triton": triton,
        "rows": [asdict(row) for row in rows],
        "uncovered": list(uncovered),
        "breaches": sum(len(row.breaches) for row in rows) + len(uncovered),
    }
    return json.dumps(drawn, indent=1)


__all__ = ["Row", "summary", "table", "to_json"]
