"""The rule above all: what the engine says it ran must be what the name resolved to."""

from __future__ import annotations

from dataclasses import dataclass

from lorry.engine.contract import Provenance
from lorry.errors import ProvenanceMismatch
from lorry.ids import AdapterDigest, BaseDigest
from lorry.registry.snapshot import Resolution


@dataclass(frozen=True, slots=True)
class Expected:
    """``adapter`` None is the base, and nothing but the base. ``tokenizer_sha256``: a version's own, if it has one."""

    adapter: AdapterDigest | None
    base: BaseDigest
    tokenizer_sha256: str

    @classmethod
    def of(cls, resolution: Resolution) -> Expected:
        digest = resolution.ref.digest if resolution.ref else None
        return cls(digest, resolution.base.base_digest, resolution.tokenizer_sha256)

    def check(self, stated: Provenance) -> None:
        """Raises ProvenanceMismatch naming what differs; nothing of the answer may then be passed on."""
        pairs = (
            ("adapter", self.adapter, stated.adapter),
            ("base", self.base, stated.base),
            ("tokenizer", self.tokenizer_sha256, stated.tokenizer_sha256),
        )
        for what, want, have in pairs:
            if want != have:
                raise ProvenanceMismatch(
                    f"{what}: the engine ran {have or 'the base alone'}, the request named {want or 'the base alone'}; "
                    "the answer is withheld, report this",
                    metadata={"field": what, "want": want or "", "have": have or "", "replica": stated.replica},
                )


__all__ = ["Expected"]
