"""Compiles a shrink and an expand for the architectures named, and prints how each waits: for test_dependent.py, in a
process that does not interpret."""

from __future__ import annotations

import json
import sys

from lorry_kernels.aot.build import SHAPES
from lorry_kernels.aot.compile import compile_build
from lorry_kernels.aot.ptx import unwaited
from lorry_kernels.ops import expand, shrink


def main() -> None:
    found = {}
    for arch in sys.argv[1:]:
        for module in (shrink, expand):
            build = next(iter(module.builds(SHAPES[0], arch)))
            text = str(compile_build(build, arch).assemblies["ptx"])
            found[f"{build.op} {arch}"] = {
                "options": build.launch.options,
                "waits": text.count("griddepcontrol.wait"),
                "lets": text.count("griddepcontrol.launch_dependents"),
                "early": "griddepcontrol.launch_dependents" in text.partition("griddepcontrol.wait")[0],
                "unwaited": unwaited(text),
            }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
