"""Saved copies: of the base's tensors, which must be the base's, and of tensors of the same files. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lorry.adapters.header import HeaderLimits, HeaderRefused, TensorFile, bf16_to_float32
from lorry.adapters.plan import AdapterPlan, EmbeddingPlan, HeadPlan
from lorry.adapters.report import Check
from lorry.adapters.shards import WeightFiles
from lorry.adapters.tensors import Planned
from lorry.errors import UnsupportedBase
from lorry.layers.base_files import weight_files
from lorry.layers.spec import EMBEDDING, HEAD, DecoderSpec

_BASE_LIMITS = HeaderLimits(header_bytes=64 << 20, tensors=1_000_000, file_bytes=1 << 44)
_BLOCK_ELEMENTS = 1 << 20
_Alike = Literal["equal", "rounded", "different"]


def check_copies(
    weights: WeightFiles, planned: Planned, spec: DecoderSpec, base_dir: Path | None
) -> tuple[AdapterPlan, list[Check]]:
    """The plan as the copies leave it, and rows ``tensors.twins`` and ``tensors.copies``, each where there are such.

    PEFT loads a copy over the base's tensor. One that is equal changes nothing. One of embedding or head that is equal
    but for the rounding of its type is applied as it is, as PEFT does. Any other is refused.
    """
    plan = planned.plan
    wrong = [
        f"{name} is not {other}{' turned' if turned else ''}"
        for name, (other, turned) in planned.twins.items()
        if _alike(_Stored.of(weights, name), _Stored.of(weights, other, turned)) != "equal"
    ]
    if wrong:
        remedy = "save the adapter again, whole"
        return plan, [Check.some_fail("tensors.twins", wrong, "and one is to stand for both", remedy)]
    if not planned.copies:
        return plan, []
    if base_dir is None:
        remedy = "the base's weights are not on this machine to compare saved copies with; validate where they are"
        return plan, [Check.some_fail("tensors.copies", [*planned.copies], "", remedy)]
    try:
        alike = _against_base(weights, planned.copies, spec, base_dir)
    except (HeaderRefused, UnsupportedBase, OSError) as error:
        message = f"the base's weights cannot be read: {error}; look at the base's folder"
        return plan, [Check.fail("tensors.copies", message)]
    outer = {EMBEDDING, HEAD}
    rounded = [name for name, how in alike.items() if how == "rounded" and planned.copies[name] in outer]
    wrong = [name for name, how in alike.items() if how != "equal" and name not in rounded]
    if not wrong:
        plan, wrong = _with_rounded(weights, plan, planned.copies, rounded, spec)
    if wrong:
        remedy = "train on this base and save with save_embedding_layers=False, or name it in modules_to_save"
        what = "is a saved copy of a base weight and not the base's"
        return plan, [Check.some_fail("tensors.copies", wrong, what, remedy)]
    message = f"{len(alike)} saved copies of base weights are the base's"
    if rounded:
        message += f", {len(rounded)} of them rounded, and stand in for it"
    return plan, [Check("tensors.copies", "pass", message, len(alike))]


def _with_rounded(
    weights: WeightFiles, plan: AdapterPlan, copies: Mapping[str, str], rounded: Sequence[str], spec: DecoderSpec
) -> tuple[AdapterPlan, list[str]]:
    """The plan with rounded copies in place of the base's matrices, and those that contradict another copy."""
    wrong: list[str] = []
    for tensors in [(EMBEDDING, HEAD)] if spec.tied_head else [(EMBEDDING,), (HEAD,)]:
        of_matrix = [name for name, tensor in copies.items() if tensor in tensors]
        used = next((name for name in of_matrix if name in rounded), None)
        if used is None:
            continue
        first = _Stored.of(weights, used)
        wrong += [name for name in of_matrix if _alike(_Stored.of(weights, name), first) != "equal"]
        embedding, head = plan.embedding or EmbeddingPlan(), plan.head or HeadPlan()
        if EMBEDDING in tensors and embedding.weight_tensor is None:
            plan = replace(plan, embedding=replace(embedding, weight_tensor=used))
        if HEAD in tensors and head.weight_tensor is None:
            plan = replace(plan, head=replace(head, weight_tensor=used))
        applied = plan.names()
        plan = replace(plan, copies=tuple(name for name in plan.copies if name not in applied))
    return plan, wrong


def _against_base(
    weights: WeightFiles, copies: Mapping[str, str], spec: DecoderSpec, base_dir: Path
) -> dict[str, _Alike]:
    """How each copy compares with the base's tensor."""
    found: dict[str, _Alike] = {}
    with ExitStack() as stack:
        held: dict[str, TensorFile] = {}
        for path in weight_files(base_dir):
            file = stack.enter_context(TensorFile(path, _BASE_LIMITS))
            held |= dict.fromkeys(file.tensors, file)
        for name, tensor in copies.items():
            if tensor == EMBEDDING and tensor not in held and spec.tied_head:
                tensor = HEAD
            if tensor in held:
                found[name] = _alike(_Stored.of(weights, name), _Stored.of(held[tensor], tensor))
            else:
                found[name] = "different"
    return found


@dataclass(frozen=True, slots=True)
class _Stored:
    """A tensor as it lies in its file; BF16 as uint16."""

    array: npt.NDArray[Any]
    dtype: str

    @classmethod
    def of(cls, files: WeightFiles | TensorFile, name: str, turned: bool = False) -> _Stored:
        array = files.stored(name)
        return cls(array.T if turned else array, files.tensors[name].dtype)

    def block(self, begin: int, end: int) -> npt.NDArray[np.float32]:
        """Rows ``begin .. end``, as float32."""
        part = np.ascontiguousarray(self.array[begin:end])
        return bf16_to_float32(part) if self.dtype == "BF16" else part.astype(np.float32, copy=False)


def _alike(one: _Stored, other: _Stored) -> _Alike:
    """``rounded``: the values are equal once both are rounded to the coarser of the two types."""
    if one.array.shape != other.array.shape:
        return "different"
    coarser = {one.dtype, other.dtype} - {"F32"}
    rows = one.array.shape[0]
    step = max(_BLOCK_ELEMENTS // max(one.array.size // rows, 1), 1)
    found: _Alike = "equal"
    for begin in range(0, rows, step):
        a, b = one.block(begin, begin + step), other.block(begin, begin + step)
        if np.array_equal(a, b):
            continue
        coarser = {dtype for dtype in coarser if np.array_equal(_rounded(a, dtype), _rounded(b, dtype))}
        if not coarser:
            return "different"
        found = "rounded"
    return found


def _rounded(values: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[np.float32]:
    """To the nearest value of F16 or BF16, ties to even."""
    if dtype == "F16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float32)
    bits = values.view(np.uint32)
    odd = (bits >> 16) & 1
    return ((bits + 0x7FFF + odd) & 0xFFFF0000).astype(np.uint32).view(np.float32)


__all__ = ["check_copies"]
