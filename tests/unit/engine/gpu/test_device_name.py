"""A device is named with its number: tensors have it, and kernels compare."""

from __future__ import annotations

import pytest
import torch

from lorry.engine.build import device_of
from lorry.errors import InvalidRequest


def test_a_card_has_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_of("cuda") == torch.device("cuda", 0)
    assert device_of("cuda:1") == torch.device("cuda", 1)
    for name in ("cuda:2", "cuda:x", "cudaX", "cuda:-1"):
        with pytest.raises(InvalidRequest, match=r"is not one of cuda:0 to cuda:1"):
            device_of(name)
