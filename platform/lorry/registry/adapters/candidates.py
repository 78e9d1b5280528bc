"""A set of uploaded files, before it is a version."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lorry.adapters.manifest import AdapterFile
from lorry.adapters.report import Check, ValidationReport
from lorry.ids import AdapterDigest


@dataclass(frozen=True, slots=True)
class BaseFacts:
    """The base that an adapter is to be served on, as it is registered; ``config`` is its config.json."""

    base_sha256: str
    tokenizer_sha256: str
    config: Mapping[str, Any]


Validator = Callable[[Path, BaseFacts, Callable[[Check], None]], Awaitable[ValidationReport]]
"""(folder, base, called with each check as it becomes known). Raises nothing for a bad adapter, and Unavailable where
none can be validated now."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """The files and what validation said of them."""

    sha256: AdapterDigest
    files: Sequence[AdapterFile]
    report: ValidationReport

    @property
    def prefix(self) -> str:
        return f"adapters/sha256/{self.sha256}"


__all__ = ["BaseFacts", "Candidate", "Validator"]
