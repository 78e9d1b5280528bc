"""What the child that reads an adapter's files may spend, stage by stage. Linux in full; no torch, no numpy.

macOS knows no limit on private memory that holds: there the processor time and the wall clock alone are enforced.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

Stage = Literal["structure", "content", "probe"]
"""``structure``: names, JSON and headers, no tensor's bytes. ``content``: values, copies of base weights, tokenizer and
template. ``probe``: the platform's arithmetic against the file's. Each is entered once, in this order."""

STAGES: tuple[Stage, ...] = ("structure", "content", "probe")
OUT_OF_MEMORY = 77
"""The child's exit status where it was refused memory."""
_MIB = 1 << 20
_WALL = 5


_TEXT = (".json", ".jinja")
_WEIGHTS = ".safetensors"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of weights and of other files, as the file system states them (a sparse file's too: hence ``most``);
    ``base``: of the base's weights."""

    weights: int
    text: int
    base: int = 0

    @classmethod
    def of(cls, folder: Path, base_dir: Path | None, most: int) -> Sizes:
        """At most ``most`` bytes of weights and of text. The base's own text files count where the version has some to
        lay over them, since both are read then. A folder that cannot be read has nothing: the child says why.
        """
        weights, text = _files(folder)
        base, base_text = (0, 0) if base_dir is None else _files(base_dir)
        return cls(min(weights, most), min(text + (base_text if text else 0), most), base)


def _files(folder: Path, most: int = 1000) -> tuple[int, int]:
    """Bytes of weights and of JSON and the like, of the first files of the folder itself."""
    weights = text = 0
    try:
        with os.scandir(folder) as scan:
            for entry in islice(scan, most):
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and entry.name.endswith(_WEIGHTS):
                    weights += status.st_size
                elif stat.S_ISREG(status.st_mode) and entry.name.endswith(_TEXT):
                    text += status.st_size
    except OSError:
        return 0, 0
    return weights, text


@dataclass(frozen=True, slots=True)
class Allowance:
    """``cpu_s``: processor seconds of the process. ``data_bytes``: private writable memory of the process, whether
    resident or not (RLIMIT_DATA; file maps that are only read are not in it). ``wall_s``: for the caller's clock."""

    cpu_s: float
    data_bytes: int
    wall_s: float


@dataclass(frozen=True, slots=True)
class Growth:
    """What one byte adds: ``cpu_s_per_mib`` for each MiB, ``data`` bytes for each byte."""

    cpu_s_per_mib: float = 0.0
    data: float = 0.0


@dataclass(frozen=True, slots=True)
class StageLimits:
    """A stage's allowance: so much, and more by the bytes of each kind. Wall time is ``wall_s`` and five times the
    processor time, since other work may hold the cores."""

    cpu_s: float
    data_bytes: int
    weights: Growth = Growth()
    text: Growth = Growth()
    base: Growth = Growth()
    wall_s: float = 10.0

    def allow(self, sizes: Sizes) -> Allowance:
        cpu_s, data = self.cpu_s, float(self.data_bytes)
        for growth, size in ((self.weights, sizes.weights), (self.text, sizes.text), (self.base, sizes.base)):
            cpu_s += growth.cpu_s_per_mib * size / _MIB
            data += growth.data * size
        return Allowance(cpu_s, math.ceil(data), self.wall_s + _WALL * cpu_s)


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Pages of the interpreter and its libraries (25 MiB) count in no stage; ``structure`` is under 200 MB with them.

    ``content`` widens values block by block and holds two tokenizers. ``probe`` computes in float64, with the base's
    own weights for DoRA, and imports torch.
    """

    structure: StageLimits = StageLimits(2.0, 160 * _MIB)
    content: StageLimits = StageLimits(2.0, 160 * _MIB, weights=Growth(1 / 32, 2), text=Growth(0.5, 16))
    probe: StageLimits = StageLimits(30.0, 2048 * _MIB, weights=Growth(0.25, 8), base=Growth(0.01, 1))
    start_wall_s: float = 30.0
    rows: int = 256
    most_bytes: int = 16 << 30
    """Of a folder, in the formulas above."""
    share: float = 0.75
    """Of the memory that the machine has to give: no stage is allowed more, whatever the formulas say."""

    def allow(self, sizes: Sizes) -> dict[Stage, Allowance]:
        """A stage's processor time counts from its beginning; what one leaves over is not carried on."""
        stages: dict[Stage, StageLimits] = {
            "structure": self.structure,
            "content": self.content,
            "probe": self.probe,
        }
        most = max(self.structure.data_bytes, int(available_bytes() * self.share))
        found = {stage: limits.allow(sizes) for stage, limits in stages.items()}
        return {stage: replace(one, data_bytes=min(one.data_bytes, most)) for stage, one in found.items()}


_NO_LIMIT = 1 << 62
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def available_bytes(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int:
    """Memory that a new process can have before others suffer: the system's estimate and what this container's bound
    leaves. Where neither is stated, as on macOS, more than any machine has."""
    free = _NO_LIMIT
    try:
        found = next(line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:"))
        free = int(found.split()[1]) << 10
    except (OSError, StopIteration, ValueError, IndexError):
        pass  # a system that does not say
    try:
        bound, used = (int((cgroup / f"memory.{name}").read_text()) for name in ("max", "current"))
        free = min(free, max(0, bound - used))
    except (OSError, ValueError):
        pass  # no bound: the file says "max", or there is none
    return free


def allowances_to_dict(found: Mapping[Stage, Allowance]) -> dict[str, Any]:
    return {stage: asdict(allowance) for stage, allowance in found.items()}


def allowances_from_dict(found: Mapping[str, Any]) -> dict[Stage, Allowance]:
    return {stage: Allowance(**found[stage]) for stage in STAGES}


__all__ = [
    "OUT_OF_MEMORY",
    "STAGES",
    "Allowance",
    "Growth",
    "SandboxLimits",
    "Sizes",
    "Stage",
    "StageLimits",
    "allowances_from_dict",
    "allowances_to_dict",
    "available_bytes",
]
