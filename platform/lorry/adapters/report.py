"""The validation report: rows of (id, outcome, message, value, limit), and the error made of the failed ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from lorry.adapters.header import show
from lorry.adapters.plan import AdapterPlan, TextPlan
from lorry.errors import AdapterRefused, FieldViolation

Outcome = Literal["pass", "fail", "warn"]
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Check:
    """One row. ``message`` names the field, the value and, where it failed, the remedy. ``value`` was found,
    ``limit`` is allowed; both are None where there is no one number."""

    id: str
    outcome: Outcome
    message: str
    value: object = None
    limit: object = None

    @classmethod
    def fail(cls, id: str, message: str, value: object = None, limit: object = None) -> Check:
        return cls(id, "fail", message, value, limit)

    @classmethod
    def some_fail(cls, id: str, wrong: Sequence[str], what: str, remedy: str) -> Check:
        """One row for many things that are wrong in one way: the first few by name."""
        named = ", ".join(wrong[:_SHOWN]) + (f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else "")
        return cls(id, "fail", f"{named}{' ' if what else ''}{what}; {remedy}", len(wrong), 0)

    def to_dict(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "outcome": self.outcome,
            "message": self.message,
            "value": _plain(self.value),
            "limit": _plain(self.limit),
        }


@dataclass(frozen=True, slots=True)
class Accepted:
    """What is kept of a version that passed. ``rank``: the largest of a layer's module, 0 without LoRA. ``vocabulary``:
    ids of the version, None where they are the base's; ``text``: its own text side, None likewise."""

    rank: int
    vocabulary: int | None = None
    text: TextPlan | None = None

    @classmethod
    def of(cls, plan: AdapterPlan) -> Accepted:
        return cls(plan.rank, plan.vocabulary, plan.text)


@dataclass(frozen=True, slots=True)
class ValidationReport:
    """``accepted`` is there exactly when no check failed; ``plan`` then too, in the process that validated."""

    checks: tuple[Check, ...]
    accepted: Accepted | None
    plan: AdapterPlan | None = None

    @property
    def ok(self) -> bool:
        return self.accepted is not None

    @property
    def rank(self) -> int:
        """The largest rank of a module; 0 where the adapter is refused."""
        return 0 if self.accepted is None else self.accepted.rank

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.outcome == "fail")

    def check(self, id: str) -> Check | None:
        """The first row of that id."""
        return next((check for check in self.checks if check.id == id), None)

    def error(self) -> AdapterRefused:
        """The refusal, with one violation per failed check. Raises ValueError where nothing failed."""
        if self.ok:
            raise ValueError("the adapter was not refused; look at report.ok first")
        failed = self.failed
        message = "; ".join(check.message for check in failed[:_SHOWN])
        more = f" (and {len(failed) - _SHOWN} more)" if len(failed) > _SHOWN else ""
        return AdapterRefused(
            f"the adapter is refused: {message}{more}",
            metadata={"failed_checks": ",".join(check.id for check in failed[:_SHOWN])},
            violations=[FieldViolation(check.id, check.message) for check in failed],
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        accepted = None if self.accepted is None else asdict(self.accepted)
        checks = [check.to_dict() for check in self.checks]
        return {"ok": self.ok, "rank": self.rank, "accepted": accepted, "checks": checks}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> ValidationReport:
        """What ``to_dict`` made, without the plan. Raises KeyError or TypeError for anything else."""
        accepted = found["accepted"]
        if accepted is not None:
            text = accepted["text"]
            if text is not None:
                text = TextPlan(text["sha256"], text["vocabulary"], tuple(text["end_ids"]))
            accepted = Accepted(accepted["rank"], accepted["vocabulary"], text)
        return cls(tuple(Check(**check) for check in found["checks"]), accepted)


def _plain(value: object) -> str | int | float | bool | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 53 else str(value)[:80]
    if isinstance(value, float):
        return value if abs(value) < float("inf") else str(value)
    return value[:200] if isinstance(value, str) else show(value)


__all__ = ["Accepted", "Check", "Outcome", "ValidationReport"]
