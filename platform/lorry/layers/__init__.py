"""Seams of a decoder: sites, spec, KV view, linear methods. Import the submodules; no torch here."""

__all__: list[str] = []
