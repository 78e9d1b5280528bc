"""Aliases: names for versions that can be moved, with their canaries and their past."""
