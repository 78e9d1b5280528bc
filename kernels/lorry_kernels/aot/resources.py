"""What compiled code uses, read from the code itself: the tools in the Triton wheel for NVIDIA, the text for AMD."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lorry_kernels.aot import llir, ptx
from lorry_kernels.aot.build import Build
from lorry_kernels.aot.flow import Access

if TYPE_CHECKING:
    from lorry_kernels.aot.compile import Compiled

_USAGE = re.compile(r"REG:(?P<registers>\d+) STACK:(?P<stack>\d+) SHARED:(?P<shared>\d+) LOCAL:(?P<local>\d+)")
_SASS_LOCAL = re.compile(r"\b(?:LDL|STL)\b")
_SASS_TENSOR = re.compile(r"\b(?:HMMA|HGMMA|IMMA|IGMMA|QGMMA|BGMMA|DMMA)\b")
_AMD_LOCAL = re.compile(r"^\s*(?:scratch_(?:load|store)|buffer_(?:load|store)\w* .*\boffen\b.*\bs\[0:3\])", re.M)
_AMD_TENSOR = re.compile(r"^\s*v_mfma_", re.M)


@dataclass(frozen=True, slots=True)
class Widths:
    """How many instructions of each width (bytes of one thread) access one argument's global memory."""

    loads: Mapping[int, int] = field(default_factory=dict)
    stores: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Resources:
    """Of one compiled kernel. Bytes a thread: ``stack_bytes``; a program: ``shared_bytes``. ``local_accesses`` and
    ``tensor_ops`` count instructions; ``spills`` counts registers (AMD's figure; NVIDIA's spills are stack)."""

    registers: int
    stack_bytes: int
    spills: int
    local_accesses: int
    shared_bytes: int
    tensor_ops: int
    widths: Mapping[str, Widths]
    unwaited: int = 0
    """Accesses of global memory before a kernel that is launched dependent waits for the one before it."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(stored: Mapping[str, Any]) -> Resources:
        widths = {
            name: Widths(**{kind: {int(size): count for size, count in sizes.items()} for kind, sizes in both.items()})
            for name, both in stored["widths"].items()
        }
        return Resources(**{**stored, "widths": widths})


UNKNOWN = "?"
"""Stands for the argument of an access whose address could not be followed back."""


def resources(build: Build, compiled: Compiled) -> Resources:
    """Raises ValueError where an assembly has a form that is not known here: the gate then fails, it does not pass."""
    arguments = [name for name in build.kernel.arg_names if name in build.signature]
    pointers = frozenset(name for name, kind in build.signature.items() if kind.startswith("*"))
    found = compiled.assemblies
    if "cubin" in found:
        widths = _widths(ptx.accesses(_text(found["ptx"]), arguments, pointers))
        measured = _nvidia(_binary(found["cubin"]), compiled.shared_bytes, widths)
        if not build.launch.dependent:
            return measured
        return replace(measured, unwaited=ptx.unwaited(_text(found["ptx"])))
    widths = _widths(llir.accesses(_text(found["llir"]), arguments, pointers))
    return _amd(_text(found["amdgcn"]), compiled.shared_bytes, widths)


def _nvidia(cubin: bytes, shared_bytes: int, widths: dict[str, Widths]) -> Resources:
    with tempfile.TemporaryDirectory(prefix="lorry-aot-") as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        usage = _USAGE.search(_tool("cuobjdump", "-res-usage", str(path)))
        sass = _tool("nvdisasm", "-c", "-ndf", str(path))  # as cuobjdump -sass, without what takes it longer
    if usage is None:
        raise ValueError("cuobjdump -res-usage: printed no resource line; aot/resources.py must learn its new form")
    return Resources(
        registers=int(usage["registers"]),
        stack_bytes=int(usage["stack"]),
        spills=0,
        local_accesses=len(_SASS_LOCAL.findall(sass)) + (1 if int(usage["local"]) else 0),
        shared_bytes=shared_bytes,
        tensor_ops=len(_SASS_TENSOR.findall(sass)),
        widths=widths,
    )


def _amd(assembly: str, shared_bytes: int, widths: dict[str, Widths]) -> Resources:
    return Resources(
        registers=_amd_figure(assembly, ".vgpr_count"),
        stack_bytes=_amd_figure(assembly, ".private_segment_fixed_size"),
        spills=_amd_figure(assembly, ".vgpr_spill_count"),
        local_accesses=len(_AMD_LOCAL.findall(assembly)),
        shared_bytes=max(shared_bytes, _amd_figure(assembly, ".group_segment_fixed_size")),
        tensor_ops=len(_AMD_TENSOR.findall(assembly)),
        widths=widths,
    )


def _text(assembly: str | bytes) -> str:
    return assembly if isinstance(assembly, str) else assembly.decode()


def _binary(assembly: str | bytes) -> bytes:
    return assembly if isinstance(assembly, bytes) else assembly.encode("latin-1")


def _amd_figure(assembly: str, name: str) -> int:
    found = re.search(rf"^\s*{re.escape(name)}:\s+(\d+)", assembly, re.M)
    if found is None:
        raise ValueError(f"amdgcn: has no {name}; aot/resources.py must learn where it went")
    return int(found[1])


def _widths(accesses: Sequence[Access]) -> dict[str, Widths]:
    loads: dict[str, Counter[int]] = {}
    stores: dict[str, Counter[int]] = {}
    for access in accesses:
        for name in sorted(access.arguments) or (UNKNOWN,):
            table = loads if access.kind == "load" else stores
            table.setdefault(name, Counter())[access.size] += 1
    return {
        name: Widths(dict(sorted(loads.get(name, {}).items())), dict(sorted(stores.get(name, {}).items())))
        for name in sorted({*loads, *stores})
    }


def _tool(name: str, *arguments: str) -> str:
    import triton

    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    if not path.is_file():
        raise FileNotFoundError(f"{path}: is not there; the triton wheel for Linux brings it")
    done = subprocess.run([str(path), *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{name} {arguments[0]}: exit status {done.returncode}: {done.stderr.strip()}")
    return done.stdout


__all__ = ["UNKNOWN", "Resources", "Widths", "resources"]
