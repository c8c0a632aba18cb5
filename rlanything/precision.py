"""Which precision `dtype: auto` means: bfloat16 where the hardware multiplies it, else float32.

A CPU without such instructions emulates bfloat16: on one with AVX2 alone at a sixtieth of its speed in float32.
"""

from __future__ import annotations

import torch

NATIVE = ("avx512_bf16", "amx_bf16", "bf16")  # what torch.cpu.get_capabilities() calls it (x86, x86, ARM)


def resolve_dtype(dtype: str, on_accelerator: bool) -> str:
    """`dtype` itself, or "bfloat16" or "float32" where it is "auto"."""
    if dtype != "auto":
        return dtype
    capabilities = torch.cpu.get_capabilities()
    return "bfloat16" if on_accelerator or any(capabilities.get(name) for name in NATIVE) else "float32"


def torch_dtype(dtype: str, on_accelerator: bool) -> torch.dtype:
    """The same as torch names it."""
    return {"bfloat16": torch.bfloat16, "float32": torch.float32}[resolve_dtype(dtype, on_accelerator)]
