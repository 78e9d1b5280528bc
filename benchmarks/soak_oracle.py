"""Adapters of random kinds against PEFT: every one right, or refused with a reason that holds.

    python benchmarks/soak_oracle.py [--examples 400] [--seed 0] [--bases llama mistral ...] [--json PATH]

On each tiny base so many examples of three adapters, their configs, files and vocabularies drawn at random. PEFT makes
and saves them, and PEFT's float32 logits are met within 1e-4, alone and in one batch with the others and the base. Ends
with status 1 at the first adapter that differs, or is refused where nothing says that it may be, and prints its config.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.append(str(Path(__file__).resolve().parents[1]))

from reporting import keep, parser_of, show
from tests.oracle.combinations import Tally, run_examples
from tests.oracle.worlds import BASES, World
from tests.support.zoo import peft_version


def soak(bases: Sequence[str], examples: int, seed: int | None) -> dict[str, Any]:
    """Raises AssertionError, with the adapter's config."""
    began = time.monotonic()
    tally, by_base = Tally(), dict[str, int]()
    with tempfile.TemporaryDirectory() as scratch:
        for number, name in enumerate(bases):
            before = tally.adapters
            run_examples(World(Path(scratch) / str(number), BASES[name]), examples, tally, seed)
            by_base[name] = tally.adapters - before
    return {
        "peft": peft_version(),
        "compared_adapters_by_base": by_base,
        **tally.to_dict(),
        "seconds": round(time.monotonic() - began, 1),
    }


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--examples", type=int, default=400, help="on each base")
    parser.add_argument("--seed", type=int, default=None, help="draw the same again")
    parser.add_argument("--bases", nargs="*", default=list(BASES), choices=list(BASES))
    options = parser.parse_args()
    try:
        result = soak(options.bases, options.examples, options.seed)
    except AssertionError as error:
        print(error, file=sys.stderr)
        return 1
    show("adapters compared with PEFT", ("base", "adapters"), result["compared_adapters_by_base"].items())
    print({name: value for name, value in result.items() if name != "compared_adapters_by_base"})
    keep(result, options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
