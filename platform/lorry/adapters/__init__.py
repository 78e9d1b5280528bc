"""Adapter versions from file to ready image: what is refused and why, where the bytes lie, how they come here.

- ``manifest``: identity. ``header``, ``shards``, ``directory``: files. ``fields``, ``config`` (with ``problems``,
  ``pattern``, ``by_module``, ``lora_config``, ``ia3_config``, ``targets``): the config. ``names``, ``linears``,
  ``outer``, ``tensors`` (with ``faults``): from tensors to the ``plan`` of what is applied.
- ``validate`` and ``report``: the verdict, with ``rows``, ``copies``, ``values``, ``text_side``; ``formats``: what is
  served and refused.
- ``store``, ``s3``, ``local_s3``: objects. ``disk``, ``tiers``: disk and host tiers.
- ``image``: the only module that imports torch. Nothing here does so on its own, and this file needs no numpy.
"""

from lorry.adapters.manifest import AdapterFile, AdapterRef, file_sha256, files_digest, scan_directory
from lorry.adapters.plan import AdapterPlan, ModulePlan

__all__ = ["AdapterFile", "AdapterPlan", "AdapterRef", "ModulePlan", "file_sha256", "files_digest", "scan_directory"]
