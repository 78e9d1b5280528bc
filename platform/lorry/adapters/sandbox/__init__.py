"""Validation in a process of its own, with limits."""
