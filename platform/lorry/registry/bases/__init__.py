"""Base models as registered."""
