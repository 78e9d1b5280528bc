"""What a part of the check found, written down as it finds it: a part that is killed keeps what it had."""

from __future__ import annotations

import json
import math
import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


class OutOfTime(Exception):
    """The part's seconds are over."""


@dataclass(frozen=True, slots=True)
class Check:
    """``of_bound``: the largest error over what is allowed, 0 or infinite where bits are compared. ``problem``: why it
    does not hold, "" where it does."""

    what: str
    of_bound: float
    problem: str = ""

    @property
    def holds(self) -> bool:
        return not self.problem


@dataclass(frozen=True, slots=True)
class Figure:
    """``value`` in ``unit`` and ``ratio``, times what ``beside`` says, both measured in this run. ``wanted``: the
    target, "" for none, and whether it is ``met``. ``more``: for the JSON alone."""

    what: str
    value: float
    unit: str
    beside: str
    ratio: float
    wanted: str = ""
    met: bool | None = None
    more: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Found:
    """One part's. ``state``: running, done, out of time, error."""

    part: str
    state: str = "running"
    seconds: float = 0.0
    problem: str = ""
    checks: list[Check] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def failed(self) -> list[Check]:
        return [check for check in self.checks if not check.holds]

    @property
    def worst(self) -> float:
        """The largest error of all that hold, over its bound."""
        return max((check.of_bound for check in self.checks if check.holds), default=0.0)

    def to_json(self) -> dict[str, Any]:
        """Written anew with every check, of which there may be a thousand: no deep copies."""
        checks = [{"what": one.what, "of_bound": one.of_bound, "problem": one.problem} for one in self.checks]
        figures = [asdict(figure) for figure in self.figures]
        found = {name: getattr(self, name) for name in ("part", "state", "seconds", "problem", "notes")}
        more = {"failed": len(self.failed), "worst_of_bound": self.worst}
        return {**found, "checks": checks, "figures": figures, **more}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Found:
        return cls(
            stored["part"],
            stored["state"],
            stored["seconds"],
            stored["problem"],
            [Check(**check) for check in stored["checks"]],
            [Figure(**figure) for figure in stored["figures"]],
            stored["notes"],
        )


class Log:
    """A part's. ``path``: where what was found so far lies, whole at any time."""

    def __init__(
        self,
        part: str,
        seconds: float,
        path: Path | None = None,
        say: Callable[[str], None] = print,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.found = Found(part)
        self._path, self._say, self._clock = path, say, clock
        self._begun = clock()
        self._seconds = seconds

    @property
    def left(self) -> float:
        """Seconds."""
        return self._seconds - (self._clock() - self._begun)

    def say(self, text: str) -> None:
        self._say(f"{self.found.part}: {text}")

    def note(self, text: str) -> None:
        """For the table's end and the JSON."""
        self.found.notes.append(text)
        self.say(text)
        self._keep()

    def check(self, what: str, of_bound: float, problem: str = "") -> None:
        """Holds where ``of_bound`` is at most 1 and ``problem`` is empty; NaN does not."""
        if not problem and not of_bound <= 1:
            problem = f"differs by {of_bound:.3g} times the bound"
        self.found.checks.append(Check(what, of_bound if math.isfinite(of_bound) else 1e30, problem))
        self.say(f"{'ok  ' if not problem else 'FAIL'} {what}" + (f": {problem}" if problem else f" ({of_bound:.2f})"))
        self._keep()

    def equal(self, what: str, same: bool, problem: str = "bits differ") -> None:
        self.check(what, 0.0 if same else math.inf, "" if same else problem)

    def figure(self, figure: Figure) -> None:
        self.found.figures.append(figure)
        wanted = f", wanted {figure.wanted}: {'met' if figure.met else 'MISSED'}" if figure.wanted else ""
        self.say(f"{figure.what}: {figure.value:.4g} {figure.unit}, {figure.ratio:.3g} of {figure.beside}{wanted}")
        self._keep()

    def watch(self) -> None:
        """Raises OutOfTime where the part's seconds are over."""
        if self.left <= 0:
            raise OutOfTime(f"ran out of its {self._seconds:.0f} s")

    @contextmanager
    def trying(self, what: str) -> Iterator[None]:
        """One case: what it raises is a check that failed, and the next case runs."""
        self.watch()
        try:
            yield
        except OutOfTime:
            raise
        except Exception as error:  # one check that breaks hides no other
            self.check(what, math.inf, f"{type(error).__name__}: {str(error).strip()[:300]}")
            self.say(traceback.format_exc())

    def run(self, body: Callable[[], None]) -> Found:
        """The part. Whatever it raises becomes its state."""
        self._keep()
        try:
            body()
            self.found.state = "done"
        except OutOfTime as error:
            self.found.state, self.found.problem = "out of time", str(error)
        except Exception as error:  # one check that breaks hides no other
            self.found.state, self.found.problem = "error", f"{type(error).__name__}: {str(error).strip()[:300]}"
            self.say(traceback.format_exc())
        self.found.seconds = round(self._clock() - self._begun, 2)
        self._keep()
        return self.found

    def _keep(self) -> None:
        if self._path is not None:
            self.found.seconds = round(self._clock() - self._begun, 2)
            new = self._path.with_suffix(".new")
            new.write_text(json.dumps(self.found.to_json()), encoding="utf-8")
            os.replace(new, self._path)


__all__ = ["Check", "Figure", "Found", "Log", "OutOfTime"]
