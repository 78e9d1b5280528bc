"""Triton kernels, each with the wrapper that checks a call and launches it. The only place that serves by Triton.

Import a module of it by name (``from lorry_kernels.ops.lora import MultiLora``): importing this package alone imports
neither torch nor Triton. ``TRITON_INTERPRET`` must be set, if at all, before the first of its modules is imported.
"""

__all__: list[str] = []
