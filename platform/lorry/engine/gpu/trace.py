"""What a body asked of the device, call by call, with everything that a graph keeps of it: values and addresses.

A trace does both of what could be done with it. **What was recorded is what runs**: each call with the arguments of the
capture, into the memory of the capture, so a value that Python changed since, or a buffer that it replaced, has no more
effect than on a card. **And the body is followed**: it runs beside, is given the recorded results, and must ask for the
same calls with the same values at the same addresses; where it does not, InternalError names the call and both. To run
the record alone would be the card's whole truth, but an error would show only where a test compares the answers, and
not at all where an old value happens to equal the new one. To compare alone would let temporaries move. What neither
sees is Python state that the body leaves behind for others: a card runs no Python at a replay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lorry.engine.gpu.hearing import Op, hearing, storage, tensors
from lorry.errors import InternalError

Body = Callable[[], tuple[Tensor, ...]]


@dataclass(frozen=True, slots=True)
class _Place:
    """All of a tensor that a graph keeps."""

    address: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)} strided {list(self.stride)} at {self.address:#x}"


@dataclass(frozen=True, slots=True)
class _Call:
    """``given`` by argument. ``again`` runs it as it was recorded and answers what the body gets."""

    name: str
    given: dict[str, Any]
    again: Callable[[], Any]


class Trace:
    """Of one run of ``body``, made now. ``outputs`` are what it returned then, and stay where they are. Tensors of the
    trace are kept, so nothing else comes to lie at their addresses."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._calls: list[_Call] = []
        self._written: set[int] = set()
        with hearing(self._record):
            self.outputs = body()
        self._returned = _facts(self.outputs)

    def poison_outputs(self) -> None:
        """Those that the trace itself writes: whoever reads one before the next run sees it."""
        for tensor in self.outputs:
            if storage(tensor) in self._written:
                poison(tensor)

    def run(self) -> None:
        """Raises InternalError where the body asks for anything else than it did, or reads a value on the host. Then
        the rest has not run."""
        step = 0

        def follow(name: str, given: dict[str, Any], call: Callable[[], Any]) -> Any:
            nonlocal step
            _compare(step, self._calls[step] if step < len(self._calls) else None, name, _facts(given))
            step += 1
            return self._calls[step - 1].again()

        with hearing(follow):
            outputs = self._body()
        if step < len(self._calls):
            left = self._calls[step]
            raise _changed(f"call {step} was {left.name}", "the body ends before it")
        found = _facts(outputs)
        if found != self._returned:
            raise _changed(f"the body returned {_said(self._returned)}", f"it returns {_said(found)}")

    def _record(self, name: str, given: dict[str, Any], call: Callable[[], Any]) -> Any:
        if isinstance(call, Op):
            made, given_storages = call(), call.storages
            fresh = {id(tensor) for tensor in tensors(made) if storage(tensor) not in given_storages}
            again: Callable[[], Any] = _Again(call, made, fresh)
            self._written |= {storage(t) for t in tensors(made) if id(t) in fresh} | call.written
            if call.allocates:
                again()
        else:
            made, again = call(), call
        self._calls.append(_Call(name, _facts(given), again))
        return made


@dataclass(frozen=True, slots=True)
class _Again:
    """``op`` once more, into the tensors that it ``made`` at first; all but the ``fresh`` (by id) are views of what it
    was given. An allocation holds what others left there."""

    op: Op
    made: Any
    fresh: set[int]

    def __call__(self) -> Any:
        if self.op.allocates:
            for tensor in tensors(self.made):
                poison(tensor)
            return self.made
        new = self.op()
        if not self.fresh:
            return new
        for kept, value in zip(tensors(self.made), tensors(new), strict=True):
            if id(kept) in self.fresh:
                kept.copy_(value)
        return self.made


def _compare(step: int, was: _Call | None, name: str, given: dict[str, Any]) -> None:
    if was is None:
        raise _changed(f"the body ended after {step} calls", f"it goes on with {name}")
    if was.name != name:
        raise _changed(f"call {step} was {was.name}", f"it is {name}")
    if was.given == given:
        return
    for key in {**was.given, **given}:
        old, new = was.given.get(key), given.get(key)
        if old != new:
            raise _changed(f"call {step}, {name}: {key} was {_said(old)}", f"it is {_said(new)}")


def _changed(was: str, now: str) -> InternalError:
    return InternalError(f"a graph runs as it was captured: {was}, now {now}; put what changes into a static buffer")


def _facts(value: Any) -> Any:
    """What a graph keeps of it, comparable."""
    if isinstance(value, Tensor):
        return _Place(value.data_ptr(), tuple(value.shape), value.stride(), value.dtype)
    if isinstance(value, dict):
        return {key: _facts(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(_facts(one) for one in value)
    # A number's type chooses a kernel too; and a NaN is the same NaN.
    return (type(value), value if value == value else "nan")


def _said(facts: Any) -> str:
    if isinstance(facts, tuple):
        if len(facts) == 2 and isinstance(facts[0], type):
            return repr(facts[1])
        return f"({', '.join(map(_said, facts))})"
    return "nothing" if facts is None else str(facts)


def poison(tensor: Tensor) -> None:
    """NaN; or a number that is no id, place, row or length, whichever width it is cut to: bytes of 5A, negated. As an
    index torch refuses it, and a kernel takes it for nothing."""
    if tensor.is_floating_point():
        tensor.fill_(float("nan"))
    elif tensor.dtype == torch.bool:
        tensor.fill_(True)
    else:
        size = tensor.dtype.itemsize
        number = int("5a" * size, 16)
        tensor.fill_(number if not tensor.dtype.is_signed else -number)


__all__ = ["Body", "Trace", "poison"]
