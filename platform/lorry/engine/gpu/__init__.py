"""The engine's device with a page arena: KV and adapters in pages of one size, Triton kernels over them."""
