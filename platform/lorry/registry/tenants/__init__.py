"""Tenants, their principals and API keys."""
