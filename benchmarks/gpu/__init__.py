"""What ``benchmarks/gpu_check.py`` is made of. Needs torch, Triton and numpy, and nothing else that is not in this
tree."""
