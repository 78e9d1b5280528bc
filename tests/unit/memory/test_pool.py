"""Bytes under a cap, whose frees wait for a step."""

from __future__ import annotations

import pytest

from lorry.errors import InternalError
from lorry.memory import BytePool


def counts(pool: BytePool) -> tuple[int, int, int, int]:
    return pool.free, pool.used, pool.pending, pool.held


def test_what_was_freed_is_usable_once_its_step_is_done() -> None:
    pool = BytePool("bytes", 100)
    pool.take(70)
    pool.take(30)
    assert counts(pool) == (0, 100, 0, 100)
    pool.release(30, at_step=4)
    pool.release(20, at_step=4)
    pool.release(10, at_step=6)
    assert counts(pool) == (0, 40, 60, 100)
    pool.step_done(3)
    assert counts(pool) == (0, 40, 60, 100)
    pool.step_done(5)
    assert counts(pool) == (50, 40, 10, 50)
    pool.release(40, at_step=5)
    assert counts(pool) == (90, 0, 10, 10), "that step is done already"
    pool.step_done(9)
    assert counts(pool) == (100, 0, 0, 0)
    pool.check_integrity()


def test_no_more_is_taken_or_freed_than_is_there() -> None:
    pool = BytePool("bytes", 10)
    pool.take(10)
    with pytest.raises(InternalError, match="1 bytes of bytes were taken but 0 are free"):
        pool.take(1)
    pool.release(6, at_step=1)
    with pytest.raises(InternalError, match="5 bytes of bytes were freed but 4 are taken"):
        pool.release(5, at_step=1)
    with pytest.raises(InternalError):
        pool.take(-1)
    with pytest.raises(InternalError):
        pool.release(-1, at_step=1)
    pool.check_integrity()


def test_nothing_may_be_taken_and_freed() -> None:
    pool = BytePool("bytes", 0)
    pool.take(0)
    pool.release(0, at_step=7)
    assert (counts(pool), pool.pending) == ((0, 0, 0, 0), 0)
    pool.check_integrity()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"_waiting": 3}, "wait for a step is wrong"),
        ({"_done_step": 8}, "wait for a step that is done"),
        ({"_held": 11}, "the cap is 10"),
        ({"_held": 1}, "the cap is 10"),
    ],
)
def test_the_integrity_check_sees(change: dict[str, int], words: str) -> None:
    pool = BytePool("bytes", 10)
    pool.take(10)
    pool.release(2, at_step=8)
    pool.check_integrity()
    for name, value in change.items():
        setattr(pool, name, value)
    with pytest.raises(InternalError, match=words):
        pool.check_integrity()
