"""Looks at a GPU before anything is started for it. No torch in the process that asks: a child looks, with the torch
build that the engine will have, and what it would refuse is refused at once.

``python -m lorry.engine.gpu.card DEVICE`` prints one line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from lorry.errors import FailedPrecondition, InvalidRequest

_PROGRAM = (sys.executable, "-m", "lorry.engine.gpu.card")
_LIMIT_S = 120.0
"""A driver that was asleep takes seconds to make its first context."""


@dataclass(frozen=True, slots=True)
class Card:
    """``free_bytes``: that nobody has yet."""

    name: str
    total_bytes: int
    free_bytes: int


def look(device: str, timeout_s: float = _LIMIT_S, program: Sequence[str] = _PROGRAM) -> Card:
    """Of an ``EngineConfig.device`` that is no CPU. Blocks for seconds. Raises InvalidRequest where this machine has no
    such device, and FailedPrecondition where it cannot be looked at."""
    try:
        done = subprocess.run([*program, device], capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise FailedPrecondition(
            f"device: {device!r} did not answer for {timeout_s:g} s; look at it with nvidia-smi, or use cpu"
        ) from None
    said = done.stdout.strip().rpartition("\n")[2]
    if done.returncode or not said.startswith("{"):
        last = done.stderr.strip().rpartition("\n")[2] or f"status {done.returncode}"
        raise FailedPrecondition(f"device: {device!r} cannot be looked at ({last}); mend its driver, or use cpu")
    found = json.loads(said)
    if "refused" in found:
        raise InvalidRequest.field("device", found["refused"])
    return Card(**found)


def main(device: str) -> None:
    import torch

    from lorry.engine.build import device_of

    try:
        place = device_of(device)
    except InvalidRequest as error:
        print(json.dumps({"refused": error.violations[0].description}))
        return
    free, total = torch.cuda.mem_get_info(place)
    print(json.dumps(asdict(Card(torch.cuda.get_device_name(place), int(total), int(free)))))


__all__ = ["Card", "look", "main"]

if __name__ == "__main__":
    main(sys.argv[1])
