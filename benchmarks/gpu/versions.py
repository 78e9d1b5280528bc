"""Whether this machine can run the check. Imports nothing that may be missing."""

from __future__ import annotations

import importlib
import re
import sys
from types import ModuleType

_LEAST = {"torch": (2, 11), "triton": (3, 6), "numpy": (2, 1)}
_CAPABILITY = (8, 0)


def problems(toy: bool) -> list[str]:
    """What is missing or too old, each with its remedy; empty where all is well. ``toy``: no GPU is needed."""
    found = []
    if sys.version_info < (3, 11):  # noqa: UP036  a bare machine's may be older than what is linted for
        found.append(f"Python: is {sys.version.split()[0]}, must be 3.11 or newer; name another interpreter")
    modules: dict[str, ModuleType] = {}
    for name, least in _LEAST.items():
        wanted = ".".join(map(str, least))
        try:
            module = importlib.import_module(name)
        except Exception as error:  # A broken wheel raises whatever it likes.
            found.append(f"{name}: cannot be imported ({error}); pip install '{name}>={wanted}'")
            continue
        modules[name] = module
        if _numbers(module.__version__) < least:
            found.append(f"{name}: is {module.__version__}, must be {wanted} or newer; pip install '{name}>={wanted}'")
    if toy and {"triton", "numpy"} <= modules.keys():
        old, new = modules["triton"].__version__, modules["numpy"].__version__
        if _numbers(old) < (3, 7) and _numbers(new) >= (2, 4):
            found.append(f"numpy: {new} breaks the interpreter of triton {old}; pip install 'numpy<2.4' for --toy")
    if not toy and "torch" in modules:
        found.extend(_card(modules["torch"]))
    return found


def _card(torch: ModuleType) -> list[str]:
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        why = "no card or no driver" if built else f"torch {torch.__version__} is a CPU build"
        return [f"GPU: torch sees none ({why}); run this where one is, or --toy for the same code on a CPU"]
    if torch.version.hip is None and torch.cuda.get_device_capability() < _CAPABILITY:
        return [f"GPU: {torch.cuda.get_device_name()} is older than Ampere, which bfloat16 wants; use another card"]
    return []


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


__all__ = ["problems"]
