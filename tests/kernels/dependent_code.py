"""Compiles a shrink and an expand for the architectures named, and prints where each waits: for test_dependent.py, in a
process that does not interpret."""

from __future__ import annotations

import json
import re
import sys

from lorry_kernels.aot.build import SHAPES
from lorry_kernels.aot.compile import compile_build
from lorry_kernels.ops import expand, shrink

_MEMORY = re.compile(r"\b(ld|st|cp|red|atom)\.[\w.:]*global")


def _places(text: str, pattern: str | re.Pattern[str]) -> list[int]:
    return [number for number, line in enumerate(text.splitlines()) if re.search(pattern, line)]


def main() -> None:
    found = {}
    for arch in sys.argv[1:]:
        for module in (shrink, expand):
            build = next(iter(module.builds(SHAPES[0], arch)))
            text = str(compile_build(build, arch).assemblies["ptx"])
            found[f"{build.op} {arch}"] = {
                "options": build.launch.options,
                "waits": _places(text, r"griddepcontrol\.wait"),
                "lets": _places(text, r"griddepcontrol\.launch_dependents"),
                "memory": _places(text, _MEMORY),
            }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
