"""The main job, shown: many tenants, many adapters, one base model, in one batch."""

from lorry.cli.demo.run import run_demo

__all__ = ["run_demo"]
