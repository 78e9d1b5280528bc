"""How attempts to log in slow down: a rule without SQL.

An attempt counts as a failure from before its password is looked at until it has succeeded. So what is tried at the
same time, in any number of processes, is counted like what is tried in turn.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from dataclasses import dataclass, replace

from lorry.registry.keys import Peppers

_DOMAIN = b"lorry-login-subject-v1\n"


@dataclass(frozen=True, slots=True)
class Rule:
    """After ``free`` failures in a row each one locks, for ``lock_s`` and twice as long each time, up to
    ``longest_s``. Failures are forgotten ``forget_s`` after the last."""

    free: int
    lock_s: float
    longest_s: float
    forget_s: float


USERNAME = Rule(free=5, lock_s=60.0, longest_s=900.0, forget_s=3600.0)
ADDRESS = Rule(free=30, lock_s=60.0, longest_s=900.0, forget_s=3600.0)
"""Many people may share one."""


@dataclass(frozen=True, slots=True)
class Count:
    """Times are Unix seconds."""

    failures: int = 0
    locked_until: float = 0.0
    forget_at: float = 0.0

    def wait_s(self, now: float) -> float:
        """Until the next attempt; 0 for none."""
        return max(0.0, self.locked_until - now)

    def attempted(self, rule: Rule, now: float) -> Count:
        """With one failure more, which is judged like all others until it turns out to be none."""
        failures = 1 if self.forget_at <= now else self.failures + 1
        locked = 0.0
        if failures >= rule.free:
            locked = now + min(rule.lock_s * 2.0 ** min(failures - rule.free, 32), rule.longest_s)
        return Count(failures, locked, max(now, locked) + rule.forget_s)

    def succeeded(self, rule: Rule) -> Count:
        """Without the attempt that turned out well: of an address, where others' may have failed."""
        failures = max(0, self.failures - 1)
        return replace(self, failures=failures, locked_until=self.locked_until if failures >= rule.free else 0.0)


def username_subject(peppers: Peppers, username: str) -> str:
    return _subject(peppers, "username", username.strip().lower()[:200])


def address_subject(peppers: Peppers, address: str) -> str:
    """Of an IPv6 address the network of 64 bits, which is what one customer has."""
    return _subject(peppers, "address", network_of(address))


def network_of(address: str) -> str:
    try:
        found = ipaddress.ip_address(address.strip())
    except ValueError:
        return address.strip().lower()[:64]
    if isinstance(found, ipaddress.IPv6Address):
        return str(found.ipv4_mapped or ipaddress.ip_network((int(found), 64), strict=False).network_address)
    return str(found)


def _subject(peppers: Peppers, kind: str, text: str) -> str:
    said = _DOMAIN + kind.encode() + b"\n" + text.encode(errors="replace")
    return hmac.new(peppers.secrets[0], said, hashlib.sha256).hexdigest()


__all__ = ["ADDRESS", "USERNAME", "Count", "Rule", "address_subject", "network_of", "username_subject"]
