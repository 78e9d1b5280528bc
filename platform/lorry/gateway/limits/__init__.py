"""Quotas as a gateway enforces them: rate, requests at one time, a month's tokens."""

from lorry.gateway.limits.gate import Hold, Limits
from lorry.gateway.limits.upkeep import Leases

__all__ = ["Hold", "Leases", "Limits"]
