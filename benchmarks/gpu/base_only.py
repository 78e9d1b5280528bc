"""What a decode step of base rows alone launches for LoRA: nothing."""

from __future__ import annotations

from functools import partial

import torch

from gpu.launched import launched
from gpu.log import Figure, Log
from lorry.engine.gpu.forms import Form
from lorry.engine.gpu.runner import PagedRunner

_OF_LORA = {
    "route": ("_place_rows", "_list_tiles"),
    "shrink": ("_shrink",),
    "expand": ("_expand",),
}
"""Kernels by op."""


def base_only(runner: PagedRunner, bucket: int, log: Log) -> None:
    """Of the forms that were captured for ``bucket`` rows. That each op is heard in a step with LoRA shows that it
    would be heard in the other."""
    names = {}
    for form in (Form.BASE, Form.LORA):
        held = runner._captured[bucket, form]
        with torch.inference_mode():
            names[form] = launched(partial(runner._decode, held.inputs, form))
    found = {form: sum(name in of for name in heard for of in _OF_LORA.values()) for form, heard in names.items()}
    unheard = [op for op, of in _OF_LORA.items() if not set(of) <= set(names[Form.LORA])]
    log.equal("a step with LoRA launches route, shrink and expand", not unheard, f"not heard: {', '.join(unheard)}")
    base, lora = found[Form.BASE], found[Form.LORA]
    log.equal("a base-only step launches none of them", base == 0, f"{base} launches")
    log.figure(
        Figure(
            f"launches for LoRA of a base-only step of {bucket} rows",
            base,
            "launches",
            f"a step with LoRA, {lora}",
            base / max(lora, 1),
            "0",
            base == 0 and not unheard,
            {"of_all_base": len(names[Form.BASE]), "of_all_lora": len(names[Form.LORA])},
        )
    )


__all__ = ["base_only"]
