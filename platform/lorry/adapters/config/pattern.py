"""Module-name patterns of an adapter's config, matched in bounded time. No torch.

PEFT hands these strings to ``re``. They come from tenants, and one like ``(.*)*x`` would hold a process for
good, so they are matched here instead: a pattern maps a set of positions (an int used as a bit set) to the
set of positions reachable through it, which has no backtracking. For the syntax that is taken the answer is
``re.fullmatch``'s; other syntax is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_MAX_LENGTH = 2000
_MAX_DEPTH = 12
_MAX_REPEAT = 256
_BUDGET = 2_000_000
_SPECIAL = frozenset(".^$*+?{}[]\\|()")
_DIGIT = frozenset("0123456789")
_WORD = _DIGIT | frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_SPACE = frozenset(" \t\n\r\f\v")
_CLASSES = {"d": _DIGIT, "w": _WORD, "s": _SPACE}


class PatternRefused(ValueError):
    """The pattern is not valid, uses syntax that is not taken, or costs too much to match."""


class MatchBudget:
    """Steps that may still be spent on matching; all patterns of one config share one (a second or so)."""

    def __init__(self, steps: int = _BUDGET) -> None:
        self.left = steps

    def spend(self, steps: int) -> None:
        self.left -= steps
        if self.left < 0:
            raise PatternRefused("costs too much to match; write it with fewer nested repeats")


class _Run:
    """One text being matched."""

    def __init__(self, text: str, budget: MatchBudget) -> None:
        self.text = text
        self.end = 1 << len(text)
        self.budget = budget
        self._masks: dict[Callable[[str], bool], int] = {}

    def where(self, accept: Callable[[str], bool]) -> int:
        """Positions whose next character is accepted."""
        mask = self._masks.get(accept)
        if mask is None:
            self.budget.spend(len(self.text))
            mask = sum(1 << at for at, char in enumerate(self.text) if accept(char))
            self._masks[accept] = mask
        return mask

    def boundaries(self) -> int:
        word = [False, *(char in _WORD for char in self.text), False]
        return sum(1 << at for at in range(len(self.text) + 1) if word[at] != word[at + 1])


_Node = Callable[[_Run, int], int]


@dataclass(frozen=True, slots=True)
class Pattern:
    """A compiled pattern. ``text`` to be matched must be ASCII without line breaks, as module names are."""

    source: str
    _node: _Node
    _budget: MatchBudget

    @classmethod
    def compile(cls, source: str, budget: MatchBudget | None = None) -> Pattern:
        """``budget`` is spent by every later match. Raises PatternRefused."""
        if len(source) > _MAX_LENGTH:
            raise PatternRefused(f"is {len(source)} characters long, over {_MAX_LENGTH}")
        if not source.isascii():
            raise PatternRefused("has characters outside ASCII, which module names do not")
        parser = _Parser(source)
        node = parser.alternatives(0)
        if parser.at < len(source):
            raise PatternRefused(f"has an unbalanced ')' at {parser.at}")
        return cls(source, node, budget or MatchBudget())

    def fullmatch(self, text: str) -> bool:
        """``re.fullmatch(source, text) is not None``. Raises PatternRefused where the budget is spent."""
        run = _Run(text, self._budget)
        return bool(self._node(run, 1) & run.end)

    def matches_after_dot(self, text: str) -> bool:
        r"""``re.match(rf"(.*\.)?({source})$", text) is not None``."""
        run = _Run(text, self._budget)
        return bool(self._node(run, 1 | run.where(lambda char: char == ".") << 1) & run.end)


def _accepting(accept: Callable[[str], bool]) -> _Node:
    def node(run: _Run, at: int) -> int:
        run.budget.spend(1)
        return (at & run.where(accept)) << 1

    return node


def _sequence(parts: list[_Node]) -> _Node:
    def node(run: _Run, at: int) -> int:
        for part in parts:
            if not at:
                break
            at = part(run, at)
        return at

    return node


def _either(parts: list[_Node]) -> _Node:
    def node(run: _Run, at: int) -> int:
        reached = 0
        for part in parts:
            reached |= part(run, at)
        return reached

    return parts[0] if len(parts) == 1 else node


def _repeat(part: _Node, least: int, most: int | None) -> _Node:
    def node(run: _Run, at: int) -> int:
        for _ in range(least):
            run.budget.spend(1)
            at = part(run, at)
        reached = fresh = at
        rounds = 0
        while fresh and (most is None or rounds < most - least):
            run.budget.spend(1)
            fresh = part(run, fresh) & ~reached
            reached |= fresh
            rounds += 1
        return reached

    return node


def _ahead(part: _Node, wanted: bool) -> _Node:
    def node(run: _Run, at: int) -> int:
        kept = 0
        while at:
            run.budget.spend(1)
            bit = at & -at
            at ^= bit
            if bool(part(run, bit)) is wanted:
                kept |= bit
        return kept

    return node


_ANCHORS: dict[str, _Node] = {
    "^": lambda run, at: at & 1,
    "$": lambda run, at: at & run.end,
    r"\A": lambda run, at: at & 1,
    r"\Z": lambda run, at: at & run.end,
    r"\b": lambda run, at: at & run.boundaries(),
    r"\B": lambda run, at: at & ~run.boundaries(),
}


class _Parser:
    def __init__(self, source: str) -> None:
        self.source = source
        self.at = 0

    def peek(self, width: int = 1) -> str:
        return self.source[self.at : self.at + width]

    def take(self, text: str) -> bool:
        found = self.source.startswith(text, self.at)
        self.at += len(text) if found else 0
        return found

    def alternatives(self, depth: int) -> _Node:
        if depth > _MAX_DEPTH:
            raise PatternRefused(f"has groups nested deeper than {_MAX_DEPTH}")
        parts = [self.sequence(depth)]
        while self.take("|"):
            parts.append(self.sequence(depth))
        return _either(parts)

    def sequence(self, depth: int) -> _Node:
        parts: list[_Node] = []
        while self.peek() not in ("", "|", ")"):
            node, repeatable = self.atom(depth)
            parts.append(self.repeats(node, repeatable))
        return _sequence(parts)

    def atom(self, depth: int) -> tuple[_Node, bool]:
        char = self.peek()
        for text, anchor in _ANCHORS.items():
            if self.take(text):
                return anchor, False
        if char == "(":
            return self.group(depth)
        if char == "[":
            accepted, negated = self.char_class()
            return _accepting(lambda c: (c in accepted) is not negated), True
        if char == "\\":
            accepted, negated = self.escape()
            return _accepting(lambda c: (c in accepted) is not negated), True
        self.at += 1
        if char == ".":
            return _accepting(lambda c: c != "\n"), True
        if char in _SPECIAL and char not in "}]":
            raise PatternRefused(f"has nothing to repeat, or a bare {char!r}, at {self.at - 1}")
        return _accepting(lambda c: c == char), True

    def group(self, depth: int) -> tuple[_Node, bool]:
        begin = self.at
        ahead: bool | None = None
        if self.take("(?="):
            ahead = True
        elif self.take("(?!"):
            ahead = False
        elif not self.take("(?:"):
            self.take("(")
            if self.peek() == "?":
                raise PatternRefused(f"uses {self.source[begin : begin + 4]!r}, which is not taken")
        node = self.alternatives(depth + 1)
        if not self.take(")"):
            raise PatternRefused(f"has an unbalanced '(' at {begin}")
        return (node, True) if ahead is None else (_ahead(node, ahead), False)

    def repeats(self, node: _Node, repeatable: bool) -> _Node:
        begin = self.at
        bounds = self.bounds()
        if bounds is None:
            return node
        if not repeatable:
            raise PatternRefused(f"repeats an anchor or a lookahead at {begin}")
        self.take("?")  # lazy: the same set of matches
        if self.peek() in ("*", "+", "?", "{"):
            raise PatternRefused(f"repeats a repeat at {self.at}")
        return _repeat(node, *bounds)

    def bounds(self) -> tuple[int, int | None] | None:
        for text, found in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.take(text):
                return found
        if not self.take("{"):
            return None
        close = self.source.find("}", self.at)
        low, comma, high = self.source[self.at : max(close, self.at)].partition(",")
        if close < 0 or not all(part == "" or part.isdigit() for part in (low, high)) or not (low or (comma and high)):
            raise PatternRefused(f"has a bare '{{' at {self.at - 1}; write \\{{")
        self.at = close + 1
        least = int(low[:9] or 0)
        most = least if not comma else int(high[:9]) if high else None
        if max(least, most or 0) > _MAX_REPEAT or (most is not None and most < least):
            raise PatternRefused(f"repeats {{{low}{comma}{high}}}, outside 0 to {_MAX_REPEAT}")
        return least, most

    def escape(self) -> tuple[frozenset[str], bool]:
        char = self.source[self.at + 1 : self.at + 2]
        self.at += 2
        if char.lower() in _CLASSES:
            return _CLASSES[char.lower()], char.isupper()
        if char == "" or char.isalnum():
            raise PatternRefused(f"uses the escape {chr(92) + char!r}, which is not taken")
        return frozenset(char), False

    def char_class(self) -> tuple[frozenset[str], bool]:
        begin = self.at
        self.at += 1
        negated = self.take("^")
        found: set[str] = set()
        first = True
        while first or self.peek() != "]":
            first = False
            if self.peek() in ("", "["):
                raise PatternRefused(f"has a class at {begin} that is not closed, or with '[' inside")
            low = self.class_item()
            if self.peek() == "-" and self.peek(2) not in ("-", "-]"):
                self.at += 1
                high = self.class_item()
                if len(low) != 1 or len(high) != 1 or min(low) > min(high):
                    raise PatternRefused(f"has a bad range in the class at {begin}")
                found.update(map(chr, range(ord(min(low)), ord(min(high)) + 1)))
            else:
                found |= low
        self.at += 1
        return frozenset(found), negated

    def class_item(self) -> frozenset[str]:
        if self.peek() != "\\":
            self.at += 1
            return frozenset(self.source[self.at - 1])
        accepted, negated = self.escape()
        if negated:
            raise PatternRefused("uses a negated escape inside a class, which is not taken")
        return accepted


__all__ = ["MatchBudget", "Pattern", "PatternRefused"]
