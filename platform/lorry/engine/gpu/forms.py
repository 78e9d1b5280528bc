"""What the adapters of a step ask for: each form does all that the ones before it do. No torch.

A graph is captured for a form, so that a step launches what its rows may need and no more. Beside LORA's launches OWN
has six a step (embedding: gather, planes, product, rows; LoRA on the head: shrink, expand) and two a layer (input gains
of o and down, which multiply before a product that the base needs anyway), and keeps the hidden rows for heads that are
multiplied outside. In SLICED, a slice of qkv or gate_up with an input gain of its own has a product of its own beside
the site's: nine more launches and, on rows of a few, those weights read a second time. IA3 with the feed-forward
modules of PEFT's defaults is OWN; only lists that name q, k, v, gate or up as feed-forward make it SLICED.
"""

from __future__ import annotations

from enum import IntEnum


class Form(IntEnum):
    BASE = 0
    LORA = 1
    OWN = 2
    SLICED = 3


ALWAYS = (Form.BASE, Form.LORA)
"""Are captured before the first request on every device. On a card OWN is too: half as many graphs again. SLICED is
captured where it is first met, for each number of rows; its kernels are compiled before."""

__all__ = ["ALWAYS", "Form"]
