"""Counter-based random numbers: Philox-4x32-10.

Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). A draw depends on
its key and counter alone, so batch mates, preemption and restarts cannot change it.
"""

from __future__ import annotations

_MASK = 0xFFFFFFFF
_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85


def philox_4x32(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Ten rounds over 32-bit words. Returns four 32-bit words."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(10):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = ((p1 >> 32) ^ c1 ^ k0) & _MASK, p1 & _MASK, ((p0 >> 32) ^ c3 ^ k1) & _MASK, p0 & _MASK
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, choice: int, position: int) -> float:
    """In [0, 1), with 24 bits, so that it is the same number in float32 and float64.

    ``seed`` is 64 bits; ``choice`` counts the answers of one request, ``position`` the token drawn.
    """
    word, _, _, _ = philox_4x32((seed & _MASK, (seed >> 32) & _MASK), (position & _MASK, choice & _MASK, 0, 0))
    return (word >> 8) / float(1 << 24)


__all__ = ["philox_4x32", "uniform"]
