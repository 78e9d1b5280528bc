"""Lorry: many LoRA adapters, many tenants, one base model."""

__all__ = ["__version__"]

__version__ = "0.1.0"
