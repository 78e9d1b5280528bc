"""The type that weights are kept in where nobody says: the one that this machine multiplies fastest."""

from __future__ import annotations

from pathlib import Path

import pytest

from lorry.engine.settings import ModelNumbers
from lorry.engine.weight_type import AUTO, choose_type, cpu_flags

SMALL = ModelNumbers(134_500_000, 1, 1, 2048)
GIB = 1 << 30


@pytest.mark.parametrize(
    ("asked", "gpu", "flags", "memory", "value", "why"),
    [
        ("bfloat16", False, "avx2", 24 * GIB, "bfloat16", "operator"),
        ("float32", True, "", 24 * GIB, "float32", "operator"),
        (AUTO, True, "avx2", 24 * GIB, "bfloat16", "GPU"),
        (AUTO, False, "avx2 avx512f avx512_bf16", 24 * GIB, "bfloat16", "avx512_bf16"),
        (AUTO, False, "amx_bf16 avx2", GIB, "bfloat16", "amx_bf16"),
        (AUTO, False, "fp asimd bf16", 24 * GIB, "bfloat16", "bf16"),
        (AUTO, False, "avx2 avx512f", 24 * GIB, "float32", "emulated"),
        (AUTO, False, "", 24 * GIB, "float32", "emulated"),
        (AUTO, False, "avx2", 1_076_000_000, "float32", "emulated"),
        (AUTO, False, "avx2", 1_075_000_000, "bfloat16", "0.5 GB of weights in float32 are over half of the 1.1 GB"),
    ],
)
def test_the_type(asked: str, gpu: bool, flags: str, memory: int, value: str, why: str) -> None:
    found = choose_type(asked, gpu, SMALL, memory, frozenset(flags.split()))
    assert found.value == value
    assert why in found.why
    assert str(found).startswith(f"dtype = {value}: ")


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx2 amx_bf16\nbugs\t: x\n\nflags\t: other\n", {"fpu", "avx2", "amx_bf16"}),
        ("processor : 0\nFeatures : fp asimd bf16\n", {"fp", "asimd", "bf16"}),
        ("nothing\n", set()),
    ],
)
def test_what_the_cpu_says_of_itself(tmp_path: Path, text: str, flags: set[str]) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert cpu_flags(tmp_path / "cpuinfo") == flags
    assert cpu_flags(tmp_path / "missing") == frozenset()
