"""LLVM IR for AMD as steps of ``flow``. Its global loads and stores are instructions, so widths are those of types."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from lorry_kernels.aot.flow import Access, Step, trace

_VALUE = re.compile(r"%[\w.]+")
_KERNEL = re.compile(r"^define amdgpu_kernel void @[\w.$]+\((?P<parameters>.*)\) ", re.M)
_VECTOR = re.compile(r"^<(\d+) x (\w+)>$")
_TYPE = r"(?P<type><\d+ x \w+>|ptr(?: addrspace\(\d+\))?|\w+)"
_PLACE = r"ptr(?: addrspace\((?P<space>\d+)\))? (?P<address>%[\w.]+)"
_LOAD = re.compile(rf"^load (?:volatile )?{_TYPE}, {_PLACE}")
_STORE = re.compile(rf"^store (?:volatile )?{_TYPE} (?P<value>.+?), {_PLACE}")
_INTRINSIC = r"@llvm\.amdgcn\.(?:raw|struct)\.(?:ptr\.)?buffer\.(?P<verb>load|store)"
_BUFFER = re.compile(rf"call {_TYPE} {_INTRINSIC}[\w.]*\((?P<rest>.*)\)")
_MASKED = re.compile(rf"call {_TYPE} @llvm\.masked\.load[\w.]*\((?P<rest>.*)\)")
_BYTES = {"bfloat": 2, "half": 2, "float": 4, "double": 8, "ptr": 8}
_SHARED = "3"


def accesses(text: str, arguments: Sequence[str], pointers: frozenset[str]) -> tuple[Access, ...]:
    """As ``ptx.accesses``, of the one kernel in ``text``."""
    kernel = _KERNEL.search(text)
    if kernel is None:
        raise ValueError("text: holds no amdgpu_kernel; aot/llir.py reads what Triton's AMD backend writes")
    values = [names[-1] for part in _parameters(kernel["parameters"]) if (names := _VALUE.findall(part))]
    entry = {value: name for value, name in zip(values, arguments, strict=False) if name in pointers}
    return trace(entry, _steps(text[kernel.end() :]))


def _steps(body: str) -> Iterator[Step]:
    for line in body.splitlines():
        code = line.split(", !", 1)[0].strip()
        if code == "}":
            return
        target, _, rest = code.rpartition(" = ") if code.startswith("%") else ("", "", code)
        writes = (target,) if target else ()
        if found := _LOAD.match(rest):
            if found["space"] == _SHARED:
                yield Step("unshare", writes)
            else:
                yield Step("load", writes, (found["address"],), _size(found["type"]))
        elif found := _STORE.match(rest):
            if found["space"] == _SHARED:
                yield Step("share", reads=tuple(_VALUE.findall(found["value"])))
            else:
                yield Step("store", reads=(found["address"],), size=_size(found["type"]))
        elif found := _BUFFER.search(rest):
            yield _buffer(found, writes)
        elif found := _MASKED.search(rest):
            yield Step("load", writes, tuple(_VALUE.findall(found["rest"])), _size(found["type"]))
        elif target:
            yield Step("compute", writes, tuple(_VALUE.findall(rest)))


def _buffer(found: re.Match[str], writes: tuple[str, ...]) -> Step:
    if found["verb"] == "load":
        return Step("load", writes, tuple(_VALUE.findall(found["rest"])), _size(found["type"]))
    value, _, address = found["rest"].partition(", ")
    return Step("store", reads=tuple(_VALUE.findall(address)), size=_size(value.rsplit(" ", 1)[0]))


def _size(kind: str) -> int:
    vector = _VECTOR.match(kind)
    lanes, scalar = (int(vector[1]), vector[2]) if vector else (1, kind.split(" ", 1)[0])
    if scalar.startswith("i") and scalar[1:].isdigit():
        return lanes * -(-int(scalar[1:]) // 8)
    if scalar not in _BYTES:
        raise ValueError(f"type: {kind!r} has no known width; aot/llir.py must learn it")
    return lanes * _BYTES[scalar]


def _parameters(text: str) -> Iterator[str]:
    depth, begin = 0, 0
    for place, character in enumerate(text):
        depth += (character in "([{<") - (character in ")]}>")
        if character == "," and depth == 0:
            yield text[begin:place]
            begin = place + 1
    yield text[begin:]


__all__ = ["accesses"]
