"""Adapters, their versions and aliases, and uploads on their way to become versions."""
