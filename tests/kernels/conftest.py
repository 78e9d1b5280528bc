"""Kernels of ``lorry_kernels.ops`` run in Triton's interpreter, in the whole process: that must be chosen before the
first of their modules is imported. On a GPU ``benchmarks/gpu_check.py`` runs them compiled."""

from __future__ import annotations

import os
import sys

os.environ.setdefault("TRITON_INTERPRET", "1")

_COMPILED = [
    name
    for name, module in sys.modules.items()
    if name.startswith("lorry_kernels.ops.")
    and any(type(value).__name__ == "JITFunction" and value.__module__ == name for value in vars(module).values())
]
if _COMPILED and os.environ["TRITON_INTERPRET"] == "1":
    raise RuntimeError(f"{_COMPILED[0]} was imported before tests/kernels/conftest.py could choose the interpreter")
