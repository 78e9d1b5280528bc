"""Decoders from a Hugging Face directory. Import the submodules; this package imports no torch by itself."""

__all__: list[str] = []
