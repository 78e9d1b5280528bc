"""Gateways and engines as they were seen last: observations, never authority."""
