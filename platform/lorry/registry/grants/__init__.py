"""Grants and pins: what a tenant may generate with, and what it is held to."""
