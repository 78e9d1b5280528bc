"""Multi-LoRA, paged attention and sampling. ``reference`` is the obvious loop, ``cpu`` the served torch path.

Nothing here knows Lorry: tensors and plain tuples in, tensors out.
"""

__all__ = ["cpu", "reference"]
