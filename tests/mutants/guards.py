"""The guards that ``make mutants`` takes out, one at a time, and the tests that hold them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Guard:
    """``text`` stands once in ``path``, and ``without`` in its place is the program without the guard."""

    name: str
    path: str
    text: str
    without: str
    tests: tuple[str, ...]


ADAPTED = "platform/lorry/layers/adapted.py"
TEST_ADAPTED = "tests/unit/layers/test_adapted.py"

GUARDS = (
    Guard(
        "lora_reads_x_without_a_gain",
        ADAPTED,
        "        x = x.clone()  # LoRA of other rows, and whoever made x, have it as it was\n",
        "",
        (TEST_ADAPTED,),
    ),
    Guard(
        "base_bias_outside_the_gain",
        ADAPTED,
        "            y = _product(method, x, found, self._widths[site])\n",
        "            y = _product(method, x, found, self._widths[site])\n"
        "            if method.bias is not None:\n"
        "                y += method.bias\n"
        "                method = PlainLinear(method._weight)\n",
        (TEST_ADAPTED,),
    ),
)

__all__ = ["GUARDS", "Guard"]
