"""What a browser calls itself, in words. Only shown: nothing is decided by it."""

from __future__ import annotations

_BROWSERS = (
    ("Edg/", "Edge"),
    ("OPR/", "Opera"),
    ("Firefox/", "Firefox"),
    ("Chrome/", "Chrome"),
    ("Chromium/", "Chromium"),
    ("Version/", "Safari"),
)
_SYSTEMS = (
    ("Windows", "Windows"),
    ("Android", "Android"),
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Mac OS", "macOS"),
    ("CrOS", "ChromeOS"),
    ("Linux", "Linux"),
)
"""The first that fits: others carry the names of those that came before them."""
WORDS_MAX = 40


def agent_words(text: str) -> str:
    """As `Firefox on Linux`; the beginning of what it said where that is nothing known, "–" where it said nothing."""
    browser = next((word for mark, word in _BROWSERS if mark in text), "")
    system = next((word for mark, word in _SYSTEMS if mark in text), "")
    known = " on ".join(word for word in (browser, system) if word)
    return known if browser else text[:WORDS_MAX] or "–"


__all__ = ["WORDS_MAX", "agent_words"]
