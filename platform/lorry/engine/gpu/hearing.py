"""Hears what a body asks of a CPU, op by op and launch by launch, and refuses what no graph can have.

A body may not ask a tensor for a value, or for a shape that depends on values; nor make a tensor of the host's values,
which a graph would copy from memory that is another's by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from lorry.errors import InternalError
from lorry_kernels.ops.launches import Launch, heard

_READS = frozenset(
    ("_local_scalar_dense", "nonzero", "item", "is_nonzero", "masked_select", "unique_dim", "_unique2", "equal")
)
_FROM_HOST = frozenset(("lift_fresh", "_pin_memory"))
_TO_HOST = frozenset(("tolist", "numpy", "__array__", "cpu"))
"""Of a tensor on a CPU torch dispatches nothing for these."""
_ALLOCATIONS = ("empty", "new_empty")

Told = Callable[[str, dict[str, Any], Callable[[], Any]], Any]
"""What is asked for, with its arguments by name, and what does it: an ``Op``, or any callable for a kernel's launch. It
answers what the body gets."""


@dataclass(frozen=True, slots=True)
class Op:
    """A call of an ATen op."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __call__(self) -> Any:
        return self.func(*self.args, **self.kwargs)

    @property
    def allocates(self) -> bool:
        """It makes tensors that hold nothing yet."""
        return bool(self.func._schema.name.rpartition("::")[2].startswith(_ALLOCATIONS))

    @property
    def storages(self) -> set[int]:
        """Of all that it was given."""
        return {storage(tensor) for tensor in tensors((self.args, self.kwargs))}

    @property
    def written(self) -> set[int]:
        """Of what it was given to write into."""
        given = _named(self.func, self.args, self.kwargs)
        targets = [
            given[argument.name]
            for argument in self.func._schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write and argument.name in given
        ]
        return {storage(tensor) for tensor in tensors(targets)}


@contextmanager
def hearing(told: Told) -> Iterator[None]:
    """Of this thread, until the end of the block. Raises InternalError, in the body, for what no graph can have."""
    with _NoHostCopies(), _Hearing(told) as ops, heard(ops.launch):
        yield


class _Hearing(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch does not type the base class
    """Tells ``told`` of each op and launch, unless a graph may not have it."""

    def __init__(self, told: Told) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # the same
        self._told = told
        self._inside = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._inside:  # the interpreter's own, which a card would not see
            return func(*args, **kwargs)
        _refuse_host(func, args)
        return self._told(str(func), _named(func, args, kwargs), Op(func, args, kwargs))

    def launch(self, launch: Launch) -> Any:
        given = {f"argument {number}": value for number, value in enumerate(launch.args)}
        given = {"grid": launch.grid, **given, **launch.kwargs}
        self._inside = True
        try:
            return self._told(f"kernel {launch.kernel}", given, launch.run)
        finally:
            self._inside = False


class _NoHostCopies(TorchFunctionMode):
    """Refuses to take a tensor's values to the host."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _TO_HOST:
            raise InternalError(f"Tensor.{name} reads a value on the host, which a captured graph cannot do")
        return func(*args, **(kwargs or {}))


def _refuse_host(func: Any, args: tuple[Any, ...]) -> None:
    name = func._schema.name.rpartition("::")[2]
    masked = name in ("index", "index_put_") and any(
        isinstance(one, Tensor) and one.dtype == torch.bool for one in args[1] or ()
    )
    if name in _FROM_HOST:
        raise InternalError(f"aten::{name} makes a tensor of the host's values, which a captured graph cannot do")
    if name in _READS or masked:
        raise InternalError(f"aten::{name} reads a value on the host, which a captured graph cannot do")


def _named(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {argument.name: value for argument, value in zip(func._schema.arguments, args, strict=False)} | kwargs


def tensors(value: Any) -> Iterator[Tensor]:
    """In lists, tuples and values of dicts, in order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from tensors(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors(one)


def storage(tensor: Tensor) -> int:
    """The same for all views of one memory, as long as one of them is kept."""
    return int(tensor.untyped_storage()._cdata)


__all__ = ["Op", "Told", "hearing", "storage", "tensors"]
