"""A ``Build`` compiled for an architecture that this machine need not have. Imports Triton.

Runs in a process without ``TRITON_INTERPRET``: with it, ``@triton.jit`` makes functions that cannot be compiled.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from lorry_kernels.aot.build import Build
from lorry_kernels.ops.launch import interpreted

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
}


@dataclass(frozen=True, slots=True)
class Compiled:
    """Assemblies by Triton's names for them, and the bytes of shared memory that a launch asks for."""

    assemblies: dict[str, str | bytes]
    shared_bytes: int


def compile_build(build: Build, arch: str) -> Compiled:
    """Raises ValueError for a build that does not fit its kernel, or an unknown architecture; whatever Triton raises
    for a kernel that does not compile."""
    kernel: Any = triton.compile(source(build), target=target(arch), options=build.launch.options)
    return Compiled(dict(kernel.asm), int(kernel.metadata.shared))


def source(build: Build) -> ASTSource:
    """What Triton compiles: all of the kernel's arguments, with the divisibility that the build claims."""
    if interpreted():
        raise ValueError("TRITON_INTERPRET: is set; unset it, kernels are compiled here, not interpreted")
    names: list[str] = build.kernel.arg_names
    known = {**build.signature, **dict.fromkeys(build.constexprs, "constexpr")}
    if unknown := sorted({*known, *build.divisible} - set(names)):
        raise ValueError(f"build: {build.op} names {', '.join(unknown)}, which its kernel does not take")
    if missing := [name for name in names if name not in known]:
        raise ValueError(f"build: {build.op} says nothing of {', '.join(missing)}; add signature or constexprs for it")
    if both := sorted(set(build.signature) & set(build.constexprs)):
        raise ValueError(f"build: {build.op} has {', '.join(both)} in both its signature and constexprs")
    for parameter in build.kernel.params:
        _check(build, parameter)
    return ASTSource(
        build.kernel,
        {name: known[name] for name in names},
        dict(build.constexprs),
        {(names.index(name),): [["tt.divisibility", 16]] for name in sorted(build.divisible & set(build.signature))},
    )


def _check(build: Build, parameter: Any) -> None:
    """What the kernel itself says of an argument goes before the build: a launch follows the kernel."""
    name, kind = parameter.name, parameter.annotation_type
    if name in build.divisible and (parameter.do_not_specialize or parameter.do_not_specialize_on_alignment):
        raise ValueError(f"build: {build.op} calls {name} divisible, its kernel does not specialize it; take it out")
    if kind and build.signature.get(name, kind) != kind:
        raise ValueError(f"build: {build.op} gives {name} as {build.signature[name]}, its kernel takes {kind}")


def target(arch: str) -> GPUTarget:
    if arch not in TARGETS:
        raise ValueError(f"arch: {arch!r} is not one of {', '.join(TARGETS)}")
    return TARGETS[arch]


def fingerprint(build: Build, arch: str) -> str:
    """Equal for builds that compile to the same code: source of the kernel and of all it calls, types, constants,
    hints, options, target and Triton's release."""
    parts = [source(build).hash(), build.launch.options, str(target(arch)), triton.__version__]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


__all__ = ["TARGETS", "Compiled", "compile_build", "fingerprint", "source", "target"]
