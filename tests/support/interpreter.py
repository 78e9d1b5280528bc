"""Triton's interpreter without what it computes for nobody: about a third of a kernel test's time."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import cache
from typing import Any


@cache
def hasten() -> None:
    """Once for the process; does nothing with a Triton whose interpreter looks otherwise.

    Whether an int32 overflows is asserted in debug mode alone and computed always. And each launch and each call of a
    device function searches the language for what it puts the interpreter's own in the place of: the same every time.
    """
    from triton.language import core
    from triton.runtime import interpreter

    patch, options = getattr(interpreter, "_patch_builtin", None), interpreter.interpreter_builder.options
    if patch is None or list(inspect.signature(patch).parameters) != ["pkg", "builder", "scope"] or options.debug:
        return
    interpreter.interpreter_builder.options = replace(options, sanitize_overflow=False)

    def builtins(part: Any) -> list[tuple[str, Any]]:
        return [(name, member) for name, member in inspect.getmembers(part) if core.is_builtin(member)]

    language = interpreter.tl
    parts = (language, core, language.tensor, language.math, core.tensor_descriptor_base)
    found = {part: builtins(part) for part in parts}

    def remembered(pkg: Any, builder: Any, scope: Any) -> None:
        members = found.get(pkg)
        if members is None:
            patch(pkg, builder, scope)
        elif members and getattr(pkg, members[0][0]) is members[0][1]:  # else a caller's launch has put all of them
            for name, member in members:
                interpreter._patch_attr(pkg, name, member, builder, scope)

    interpreter._patch_builtin = remembered


__all__ = ["hasten"]
