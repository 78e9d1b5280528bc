"""A map that is never changed: a newer one shares with it all that stayed the same."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

_BITS = 4
_WAYS = 1 << _BITS
_LEAF = 64
"""Most entries of a leaf that can be split."""
_DEEPEST = 15
"""Splits of one path: then a hash's bits are used up, and equal hashes stay together."""


class PersistentMap(Mapping[K, V]):
    """Why not a dict: putting one entry into a copy of one with 100,000 costs milliseconds on the event loop, here
    microseconds whatever the size, with no rebuild that is due now and then.

    A tree of 16 ways over the bits of the keys' hashes. Its leaves are dicts of at most 64 entries; an update copies
    those that it touches and the tuples above them. Iteration has no order to rely on. Safe to read from anywhere.
    """

    __slots__ = ("_root", "_size")
    _root: Any
    _size: int

    def __init__(self, pairs: Iterable[tuple[K, V]] = ()) -> None:
        self._root, self._size = _EMPTY._root, 0
        made = self.updated(pairs)
        self._root, self._size = made._root, made._size

    @classmethod
    def of(cls, mapping: Mapping[K, V]) -> PersistentMap[K, V]:
        """``mapping`` itself where it is one already."""
        return mapping if isinstance(mapping, PersistentMap) else cls(mapping.items())

    def updated(self, pairs: Iterable[tuple[K, V]] = (), without: Collection[K] = ()) -> PersistentMap[K, V]:
        """This one with ``pairs`` put in and the keys of ``without``, which may be absent, left out."""
        changes: dict[Any, Any] = dict.fromkeys(without, _GONE)
        changes.update(pairs)
        if not changes:
            return self
        root, grown = _put(self._root, [(hash(key), key, value) for key, value in changes.items()], 0)
        made: PersistentMap[K, V] = PersistentMap.__new__(PersistentMap)
        made._root, made._size = root, self._size + grown
        return made

    @overload
    def get(self, key: K, /) -> V | None: ...
    @overload
    def get(self, key: K, /, default: D) -> V | D: ...
    def get(self, key: K, /, default: Any = None) -> Any:
        node, bits = self._root, hash(key)
        while node.__class__ is tuple:
            node = node[bits & 15]
            bits >>= 4
        return node.get(key, default)

    def __getitem__(self, key: K) -> V:
        found = self.get(key, _GONE)
        if found is _GONE:
            raise KeyError(key)
        return found

    def __contains__(self, key: object) -> bool:
        return self.get(key, _GONE) is not _GONE  # type: ignore[arg-type]  # any object may be looked for

    def __iter__(self) -> Iterator[K]:
        for leaf in _leaves(self._root):
            yield from leaf

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"PersistentMap({dict(self)!r})"


def _put(node: Any, changes: list[tuple[int, Any, Any]], depth: int) -> tuple[Any, int]:
    """The node with the changes, whose hashes agree with its place, and by how many entries it grew."""
    if node.__class__ is dict:
        leaf = dict(node)
        for _, key, value in changes:
            if value is _GONE:
                leaf.pop(key, None)
            else:
                leaf[key] = value
        return _split(leaf, depth), len(leaf) - len(node)
    ways: dict[int, list[tuple[int, Any, Any]]] = {}
    for change in changes:
        ways.setdefault((change[0] >> (_BITS * depth)) & (_WAYS - 1), []).append(change)
    children, grown = list(node), 0
    for way, part in ways.items():
        children[way], more = _put(children[way], part, depth + 1)
        grown += more
    return tuple(children), grown


def _split(leaf: dict[Any, Any], depth: int) -> Any:
    if len(leaf) <= _LEAF or depth >= _DEEPEST:
        return leaf
    ways: list[dict[Any, Any]] = [{} for _ in range(_WAYS)]
    for key, value in leaf.items():
        ways[(hash(key) >> (_BITS * depth)) & (_WAYS - 1)][key] = value
    return tuple(_split(way, depth + 1) for way in ways)


def _leaves(node: Any) -> Iterator[dict[Any, Any]]:
    if node.__class__ is dict:
        yield node
    else:
        for child in node:
            yield from _leaves(child)


_GONE: Any = object()
_EMPTY: PersistentMap[Any, Any] = PersistentMap.__new__(PersistentMap)
_EMPTY._root, _EMPTY._size = {}, 0

__all__ = ["PersistentMap"]
