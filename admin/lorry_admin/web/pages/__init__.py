"""A module a page, or a few that belong together. Each has a ``router``."""
