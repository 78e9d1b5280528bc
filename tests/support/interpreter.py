"""Triton's interpreter: without what it computes for nobody, half of a test's time; with dots as a GPU has them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np


@cache
def hasten() -> None:
    """Once for the process; does nothing with a Triton whose interpreter looks otherwise.

    Whether an int32 overflows is asserted in debug mode alone and computed always. Each launch and each call of a
    device function searches the language for what it puts the interpreter's own in the place of: the same every time.
    And every value has its type, shape and NumPy type made anew, of which there are a few hundred.
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
    if _says(core.block_type, "element_ty", "shape") and _says(core.tensor, "handle", "type"):
        _keep_types(interpreter, core)


def _says(kind: Any, *arguments: str) -> bool:
    return list(inspect.signature(kind.__init__).parameters) == ["self", *arguments]


def _keep_types(interpreter: Any, core: Any) -> None:
    """What a type and a value take from their shapes is made once for each shape. Nobody changes a shape in place."""
    of_numpy, new_type, new_value = interpreter._get_np_dtype, core.block_type.__init__, core.tensor.__init__
    numpy_types: dict[str, Any] = {}
    types: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    shapes: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    constexpr = core.constexpr

    def numpy_type(kind: Any) -> Any:
        found = numpy_types.get(kind.name)
        if found is None:
            found = numpy_types[kind.name] = of_numpy(kind)
        return found

    def block_type(self: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, *(size.value if type(size) is constexpr else size for size in shape))
        if key in types:
            self.element_ty = element_ty
            self.shape, self.numel, self.name = types[key]
        else:
            new_type(self, element_ty, shape)
            types[key] = self.shape, self.numel, self.name

    def tensor(self: Any, handle: Any, type: Any) -> None:
        key = tuple(type.shape) if type.is_block() else ()
        if key in shapes:
            self.handle, self.type, self.dtype = handle, type, type.scalar
            self.shape, self.numel = shapes[key]
        else:
            new_value(self, handle, type)
            shapes[key] = self.shape, self.numel

    interpreter._get_np_dtype = numpy_type
    core.block_type.__init__ = block_type
    core.tensor.__init__ = tensor


@contextmanager
def dots_by_row() -> Iterator[None]:
    """A row of ``tl.dot`` has the same bits wherever in its tile it stands, as on every GPU: the interpreter's are
    NumPy's, whose BLAS sums a row in an order of its own at a tile's edge, on some processors. Here the sums are made
    in float64, where the orders differ by less than float32 can tell, and rounded once."""
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder

    def dot(a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
        product = np.matmul(a.data.astype(np.float64), b.data.astype(np.float64)).astype(d.data.dtype)
        return interpreter.TensorHandle(product + d.data, d.dtype.scalar)

    builder.create_dot = dot
    try:
        yield
    finally:
        del builder.create_dot


__all__ = ["dots_by_row", "hasten"]
