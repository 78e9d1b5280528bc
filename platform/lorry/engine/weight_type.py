"""Which type a base's weights are kept in on this machine, where nobody says. No torch.

bfloat16 halves the bytes that a decode step reads. But a CPU without products of it emulates them: on one with AVX2 a
row takes 0.9 times as long as in float32, 16 rows 3.5 times and 256 rows 7 times (``benchmarks/bench_weight_type.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lorry.config import machine_memory
from lorry.engine.settings import ModelNumbers

AUTO = "auto"
_PRODUCTS = ("amx_bf16", "avx512_bf16", "bf16")
"""A CPU's flags for products of bfloat16; the last is ARM's."""
_FLOAT32_BYTES = 4
_MOST_OF_MEMORY = 0.5
"""For the weights alone: state, adapters and activations come on top."""


@dataclass(frozen=True, slots=True)
class TypeChoice:
    """As ``lorry.engine.settings.Choice``, of a word."""

    value: str
    why: str
    name: str = "dtype"

    def __str__(self) -> str:
        return f"{self.name} = {self.value}: {self.why}"


def choose_type(asked: str, gpu: bool, model: ModelNumbers, machine_bytes: int, flags: frozenset[str]) -> TypeChoice:
    """``asked``: a type, or AUTO. ``flags``: as ``cpu_flags`` reads them."""
    if asked != AUTO:
        return TypeChoice(asked, "as the operator chose")
    if gpu:
        return TypeChoice("bfloat16", "what GPUs multiply")
    products = [flag for flag in _PRODUCTS if flag in flags]
    if products:
        return TypeChoice("bfloat16", f"this CPU has products of it ({products[0]})")
    taken = model.parameters * _FLOAT32_BYTES
    if taken > machine_bytes * _MOST_OF_MEMORY:
        said = f"{taken / 1e9:.1f} GB of weights in float32 are over half of the {machine_bytes / 1e9:.1f} GB here"
        return TypeChoice("bfloat16", f"{said}, though this CPU emulates its products")
    return TypeChoice("float32", "this CPU has no products of bfloat16; emulated, steps of many tokens take far longer")


def type_here(base_dir: Path, asked: str = AUTO, *, gpu: bool = False) -> TypeChoice:
    """``choose_type`` of a base's folder on this machine. Raises UnsupportedBase as ``ModelNumbers.read``."""
    return choose_type(asked, gpu, ModelNumbers.read(base_dir, asked), machine_memory(), cpu_flags())


def cpu_flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """What the first core says it can; empty where that cannot be read."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    found = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return frozenset(found.partition(":")[2].split())


__all__ = ["AUTO", "TypeChoice", "choose_type", "cpu_flags", "type_here"]
