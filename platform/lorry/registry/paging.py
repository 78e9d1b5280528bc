"""Pages: opaque tokens over the last key shown, so a page never skips or repeats a row that stays."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from lorry.errors import InvalidRequest

DEFAULT_SIZE = 100
MAX_SIZE = 1000
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Page(Generic[Row]):
    rows: Sequence[Row]
    next_token: str


@dataclass(frozen=True, slots=True)
class PageRequest:
    """``after`` is the last key of the page before, or ""; ``size`` is in [1, 1000]."""

    size: int
    after: str

    @classmethod
    def of(cls, page_size: int, page_token: str) -> PageRequest:
        if page_size < 0:
            raise InvalidRequest.field("page_size", f"{page_size} is negative; use 0 to {MAX_SIZE}")
        try:
            after = base64.urlsafe_b64decode(page_token.encode()).decode() if page_token else ""
        except ValueError:
            raise InvalidRequest.field("page_token", "is not one; use a next_page_token as it was given") from None
        return cls(min(page_size or DEFAULT_SIZE, MAX_SIZE), after)

    def page(self, rows: Sequence[Row], key: Callable[[Row], str]) -> Page[Row]:
        """``rows`` were asked for with a limit of ``size`` + 1."""
        shown = rows[: self.size]
        more = len(rows) > self.size
        return Page(shown, base64.urlsafe_b64encode(key(shown[-1]).encode()).decode() if more else "")


__all__ = ["DEFAULT_SIZE", "MAX_SIZE", "Page", "PageRequest"]
