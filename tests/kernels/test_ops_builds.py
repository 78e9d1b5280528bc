"""What ``builds`` say is what is launched, and all that is shipped: the ahead-of-time gate judges nothing else."""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from triton.runtime.jit import KernelParam

from lorry_kernels.aot import catalogue
from lorry_kernels.aot.build import ARCHES, EVERY_SHAPE, Build, ModelShape
from lorry_kernels.ops.launches import Launch, heard
from lorry_kernels.tuning import Phase, Row, table
from lorry_kernels.tuning.configs import Config
from lorry_kernels.tuning.defaults import DEFAULTS
from lorry_kernels.tuning.rows import choose
from tests.kernels.served import Served

TYPES = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
MODULES = {name: importlib.import_module(name) for name in catalogue.ops_modules()}


def parameters(kernel: Any) -> dict[str, KernelParam]:
    free = kernel.kwargs["do_not_specialize"] or ()
    found = enumerate(inspect.signature(kernel.fn).parameters.items())
    return {name: KernelParam(number, one, name in free, False) for number, (name, one) in found}


def kind(parameter: KernelParam, value: Any) -> str:
    """The type that Triton's launcher compiles for."""
    if isinstance(value, Tensor):
        return TYPES[value.dtype]
    if parameter.annotation_type:
        return str(parameter.annotation_type)
    if isinstance(value, int):
        assert not isinstance(value, bool)
        if value == 1 and not parameter.do_not_specialize:
            return "constexpr"
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    assert isinstance(value, float)
    return "fp32"


def launches(shape: ModelShape, arch: str, monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """None of which ran."""
    for module in MODULES.values():
        if hasattr(module, "architecture"):
            monkeypatch.setattr(module, "architecture", lambda device: arch)
    found: list[Launch] = []
    with heard(found.append):
        Served(shape, arch).launch_all()
    return found


def builds(shape: ModelShape, arch: str) -> dict[str, list[Build]]:
    """By the kernel's name."""
    found: dict[str, list[Build]] = {}
    for module in MODULES.values():
        for build in module.builds(shape, arch) if hasattr(module, "builds") else ():
            found.setdefault(build.kernel.__name__, []).append(build)
    return found


def unlike(launch: Launch, build: Build, known: Mapping[str, KernelParam]) -> Iterator[str]:
    """What of a launch is not as the build says."""
    said, given = {**build.constexprs, **build.launch.options}, launch.kwargs
    for name in sorted(said | given):
        if name not in said or name not in given or said[name] != given[name]:
            yield f"{name} is {given.get(name)}, built as {said.get(name)}"
    for (name, parameter), value in zip(known.items(), launch.args, strict=False):
        if (found := kind(parameter, value)) != build.signature[name]:
            yield f"{name} is {found}, built as {build.signature[name]}"
        if name in build.divisible:
            if parameter.do_not_specialize:
                yield f"{name} is not specialised, built as divisible"
            if (value.data_ptr() if isinstance(value, Tensor) else value) % 16:
                yield f"{name} is not divisible by 16, built as divisible"


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("shape", EVERY_SHAPE, ids=lambda shape: shape.name)
def test_what_is_launched_is_what_is_built(shape: ModelShape, arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    built = builds(shape, arch)
    waiting = {build.label for same in built.values() for build in same}
    for launch in launches(shape, arch, monkeypatch):
        known = parameters(built[launch.kernel][0].kernel)
        found = {build.label: list(unlike(launch, build, known)) for build in built[launch.kernel]}
        nearest = min(found.values(), key=len)
        assert not nearest, f"{launch.kernel}: {'; '.join(nearest)}"
        waiting -= {label for label, differences in found.items() if not differences}
    assert not waiting, "built, and launched by nobody"


# Rows of the tuning table.


@pytest.mark.parametrize("rows", [DEFAULTS, table.measured()], ids=["defaults", "measured"])
def test_every_row_of_the_tuning_table_is_in_a_build(rows: tuple[Row, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that nobody compiles is not shipped: nobody knows that it compiles."""
    asked: set[tuple[str, str, int, int, int, str]] = set()
    real = table._lookup

    def noted(arch: str, op: str, k: int, n: int, rank: int, phase: Phase) -> Config:
        asked.add((arch, op, k, n, rank, phase))
        return real(arch, op, k, n, rank, phase)

    monkeypatch.setattr(table, "_lookup", noted)
    for arch, shape in itertools.product(ARCHES, EVERY_SHAPE):
        builds(shape, arch)
    used = [choose(rows, *one) for one in asked]
    assert [row for row in rows if row not in used] == []
