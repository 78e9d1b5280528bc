"""Every build of every ops module, and the kernels that no build covers."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from triton.runtime.jit import JITFunction

from lorry_kernels import ops
from lorry_kernels.aot.build import ARCHES, EVERY_SHAPE, Build, ModelShape


@dataclass(frozen=True, slots=True)
class Job:
    """Where a build is found again in another process: builds hold functions, which do not travel."""

    module: str
    shape: ModelShape
    arch: str
    position: int

    @property
    def build(self) -> Build:
        return _builds(self.module, self.shape, self.arch)[self.position]


def ops_modules() -> tuple[str, ...]:
    """Names of all modules of ``lorry_kernels.ops``."""
    return tuple(f"{ops.__name__}.{found.name}" for found in pkgutil.iter_modules(ops.__path__))


def jobs(
    modules: Iterable[str], shapes: Sequence[ModelShape] = EVERY_SHAPE, arches: Sequence[str] = ARCHES
) -> Iterator[Job]:
    """In a fixed order: module, architecture, shape, the module's own."""
    for module in modules:
        if not hasattr(importlib.import_module(module), "builds"):
            continue
        for arch in arches:
            for shape in shapes:
                for position in range(len(_builds(module, shape, arch))):
                    yield Job(module, shape, arch, position)


def uncovered(modules: Iterable[str], found: Iterable[Job]) -> tuple[str, ...]:
    """Kernels of ``modules`` that are in no build and that no kernel in a build calls, as ``module.name``."""
    loaded = [importlib.import_module(module) for module in modules]
    waiting = {kernel.fn.__name__: f"{kernel.fn.__module__}.{kernel.fn.__name__}" for kernel in _own_kernels(loaded)}
    sources = [job.build.kernel.src for job in found]
    texts = {kernel.fn.__name__: kernel.src for kernel in _own_kernels(loaded)}
    for source in dict.fromkeys(sources):
        _reach(source, waiting, texts)
    return tuple(sorted(waiting.values()))


def _reach(source: str, waiting: dict[str, str], texts: dict[str, str]) -> None:
    for name in set(re.findall(r"\w+", source)) & set(waiting):
        if waiting.pop(name, None):
            _reach(texts[name], waiting, texts)


def _own_kernels(modules: Iterable[ModuleType]) -> Iterator[Any]:
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, JITFunction) and value.fn.__module__ == module.__name__:
                yield value


@cache
def _builds(module: str, shape: ModelShape, arch: str) -> tuple[Build, ...]:
    return tuple(importlib.import_module(module).builds(shape, arch))


__all__ = ["Job", "jobs", "ops_modules", "uncovered"]
