"""What is told how a validation goes, while it goes. No torch, no numpy."""

from __future__ import annotations

from lorry.adapters.report import Check
from lorry.adapters.sandbox.limits import Stage


class Watch:
    """This one does nothing with it. Called on the thread that validates; what it raises ends the validation."""

    def row(self, check: Check) -> None:
        """Each row of the report once, in the report's order, as soon as it is known."""

    def stage(self, name: Stage) -> None:
        """Before the first work of a stage after ``structure``. None is entered when a row has failed."""


__all__ = ["Watch"]
