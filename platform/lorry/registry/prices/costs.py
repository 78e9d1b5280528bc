"""Prices by day, and what usage costs by them. Exact: whole numbers inside, decimals outside, no floats. No SQL."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import ROUND_HALF_EVEN, Decimal, localcontext

from lorry.errors import InvalidRequest

PLACES = 6
"""Of a price's fraction."""
PRICE_MAX = Decimal(1_000_000)
"""For a million tokens."""
_MICRO = Decimal(1).scaleb(-PLACES)
_DIGITS = 60
"""More than any sum of tokens times any price has."""


@dataclass(frozen=True, slots=True)
class Price:
    """From ``effective_on`` (a UTC day) until the next one of its tenant. For a million tokens, in units of
    ``currency`` (ISO 4217), with at most six decimals. ``cached_prompt`` is for those of the prompt's tokens that came
    from the prefix cache."""

    effective_on: date
    currency: str
    prompt: Decimal
    cached_prompt: Decimal
    output: Decimal


@dataclass(frozen=True, slots=True)
class DayUse:
    """Sums of a UTC day, as QueryUsage answers them by day. ``prompt_tokens`` hold the cached ones."""

    day: date
    prompt_tokens: int
    cached_prompt_tokens: int
    output_tokens: int


def price_on(day: date, prices: Iterable[Price]) -> Price | None:
    """The newest that is in force on ``day``; None before the first."""
    return max((one for one in prices if one.effective_on <= day), key=lambda one: one.effective_on, default=None)


def cost(days: Iterable[DayUse], prices: Sequence[Price]) -> Decimal:
    """What the days cost together, exactly. Days before the first price cost nothing. Raises ValueError for prices in
    several currencies, which nobody can add."""
    currencies = sorted({one.currency for one in prices})
    if len(currencies) > 1:
        raise ValueError(f"prices: in {' and '.join(currencies)}; add up each currency by itself")
    total = 0
    for used in days:
        price = price_on(used.day, prices)
        if price is not None:
            fresh = used.prompt_tokens - used.cached_prompt_tokens
            total += fresh * to_micros(price.prompt) + used.cached_prompt_tokens * to_micros(price.cached_prompt)
            total += used.output_tokens * to_micros(price.output)
    with localcontext(prec=_DIGITS):
        return Decimal(total).scaleb(-2 * PLACES)


def to_micros(value: Decimal) -> int:
    """Of a price that ``parse_price`` made, in millionths."""
    with localcontext(prec=_DIGITS):
        return int(value.scaleb(PLACES).to_integral_value(ROUND_HALF_EVEN))


def from_micros(micros: int) -> Decimal:
    with localcontext(prec=_DIGITS):
        return Decimal(micros).scaleb(-PLACES)


def parse_price(field: str, text: str) -> Decimal:
    """As ``0.15``. Raises InvalidRequest for what is none, negative, beyond ``PRICE_MAX`` or finer than a millionth."""
    if not text or len(text) > 20 or not set(text) <= set("0123456789.") or text.count(".") > 1 or text == ".":
        raise InvalidRequest.field(field, f"{text[:40]!r} is not a price; write it as 0.15")
    value = Decimal(text)
    if value > PRICE_MAX:
        raise InvalidRequest.field(field, f"{text} is more than {PRICE_MAX}; it is for a million tokens")
    if value.quantize(_MICRO) != value:
        raise InvalidRequest.field(field, f"{text} has more than {PLACES} decimals; round it")
    return value


def price_text(value: Decimal) -> str:
    """Without an exponent and without zeros at its end: ``0.15``."""
    text = f"{value:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


__all__ = [
    "PLACES",
    "PRICE_MAX",
    "DayUse",
    "Price",
    "cost",
    "from_micros",
    "parse_price",
    "price_on",
    "price_text",
    "to_micros",
]
