"""Quotas: how much a tenant may use, or how much of one adapter."""
