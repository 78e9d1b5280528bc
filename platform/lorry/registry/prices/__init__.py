"""What a tenant's tokens cost."""

from lorry.registry.prices.costs import DayUse, Price, cost, price_on

__all__ = ["DayUse", "Price", "cost", "price_on"]
