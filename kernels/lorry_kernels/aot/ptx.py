"""PTX as steps of ``flow``: which registers make the address of each access to global memory, and how wide it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from lorry_kernels.aot.flow import Access, Step, trace

_REGISTER = re.compile(r"%[A-Za-z_]+\d+")
_PARAMETER = re.compile(r"\w+_param_(\d+)")
_WIDTH = re.compile(r"(?:\.v(?P<lanes>[248]))?\.(?:[bfsu]|bf)(?P<bits>8|16|32|64|128)$")
_GUARD = re.compile(r"^@!?%\w+\s+")
_GLOBAL = re.compile(r"^\s*(?:@!?%\w+\s+)?(?:ld|st|cp|atom|red)\.[\w.:]*global", re.M)
_WITHOUT_RESULT = ("bra", "ret", "bar", "barrier", "fence", "membar", "red", "call", "trap", "exit", "mbarrier")


def accesses(text: str, arguments: Sequence[str], pointers: frozenset[str]) -> tuple[Access, ...]:
    """Accesses of the one entry in ``text``. ``arguments``: those of the kernel that are no constexpr, in order;
    ``pointers``: those of them that are addresses."""
    steps: list[Step] = []
    entry: dict[str, str] = {}
    for opcode, operands in _statements(text):
        if opcode.startswith("ld.param"):
            found = _PARAMETER.search(operands[1])
            index = int(found[1]) if found else len(arguments)
            if index < len(arguments) and arguments[index] in pointers:
                entry.update(dict.fromkeys(_registers(operands[0]), arguments[index]))
        elif step := _step(opcode, operands):
            steps.append(step)
    return trace(entry, steps)


def unwaited(text: str) -> int:
    """Accesses of global memory that stand before ``griddepcontrol.wait``; all of them where it is missing."""
    return len(_GLOBAL.findall(text.partition("griddepcontrol.wait")[0]))


def _step(opcode: str, operands: list[str]) -> Step | None:
    name = opcode.split(".", 1)[0]
    if name == "cp" and "global" in opcode and operands:
        if ".bulk" in opcode:  # Copied by the tensor memory accelerator: always whole lines.
            return Step("load", reads=_registers(*operands[1:]), size=16)
        return Step("load", reads=_registers(operands[1]), size=int(operands[2], 0))
    if name in ("ld", "ldu"):
        if ".shared" in opcode:
            return Step("unshare", writes=_registers(operands[0]))
        return Step("load", _registers(operands[0]), _registers(operands[1]), _size(opcode))
    if name in ("st", "stmatrix"):
        if ".shared" in opcode:
            return Step("share", reads=_registers(*operands[1:]))
        return Step("store", reads=_registers(operands[0]), size=_size(opcode))
    if name in ("ldmatrix", "atom", "cp", "setp", *_WITHOUT_RESULT) or len(operands) < 2:
        return None
    return Step("compute", _registers(operands[0]), _registers(*operands[1:]))


def _size(opcode: str) -> int:
    found = _WIDTH.search(opcode)
    if found is None:
        raise ValueError(f"opcode: {opcode!r} does not end in a width; aot/ptx.py must learn it")
    return int(found["lanes"] or 1) * int(found["bits"]) // 8


def _registers(*operands: str) -> tuple[str, ...]:
    return tuple(register for operand in operands for register in _REGISTER.findall(operand))


def _statements(text: str) -> Iterator[tuple[str, list[str]]]:
    """Opcode and operands of each instruction, inline assembly included."""
    lines = []
    for line in text.splitlines():
        code = line.split("//", 1)[0].strip()
        if code and not code.startswith((".", "$", ")")) and not code.endswith(":"):
            lines.append(code)
    for statement in " ".join(lines).split(";"):
        code = _GUARD.sub("", statement.strip().lstrip("{} \t"))
        opcode, _, rest = code.partition(" ")
        if rest and not opcode.startswith("."):
            yield opcode, _operands(rest)


def _operands(text: str) -> list[str]:
    """Cut at the commas outside of brackets and braces."""
    parts, depth, begin = [], 0, 0
    for place, character in enumerate(text):
        if character in "{[(":
            depth += 1
        elif character in "}])":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[begin:place].strip())
            begin = place + 1
    parts.append(text[begin:].strip())
    return parts


__all__ = ["accesses", "unwaited"]
