"""The torch path that serves on a CPU."""

from lorry_kernels.cpu.attention import DecodeAttention, decode_attention, plan_decode, prefill_attention
from lorry_kernels.cpu.logprobs import RowLogprobs, logprobs
from lorry_kernels.cpu.lora import LoraRouting, lora_apply, route
from lorry_kernels.cpu.penalties import Penalties
from lorry_kernels.cpu.rotary import apply_rotary, rotary_tables
from lorry_kernels.cpu.sampling import RowSampling, sample

__all__ = [
    "DecodeAttention",
    "LoraRouting",
    "Penalties",
    "RowLogprobs",
    "RowSampling",
    "apply_rotary",
    "decode_attention",
    "logprobs",
    "lora_apply",
    "plan_decode",
    "prefill_attention",
    "rotary_tables",
    "route",
    "sample",
]
