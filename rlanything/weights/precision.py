"""Resolves `dtype: auto`: bfloat16 if the hardware multiplies it, else float32.

A CPU without bfloat16 instructions emulates them: with AVX2 alone, that takes 60 times as long as float32.
"""

import torch

NATIVE = ("avx512_bf16", "amx_bf16", "bf16")  # bfloat16's names in torch.cpu.get_capabilities(): x86, x86, ARM


def multiplies_bfloat16(on_accelerator: bool) -> bool:
    """True if this machine's CPU, or its accelerator, multiplies bfloat16.

    A machine without an accelerator assumes that others' accelerators do: it may only be planning a run.
    """
    if on_accelerator:
        return not torch.cuda.is_available() or torch.cuda.is_bf16_supported(including_emulation=False)
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in NATIVE)


def torch_dtype(dtype: str, on_accelerator: bool) -> torch.dtype:
    """The type that a configuration's `dtype` names: auto, bfloat16 or float32."""
    if dtype == "auto":
        dtype = "bfloat16" if multiplies_bfloat16(on_accelerator) else "float32"
    return {"bfloat16": torch.bfloat16, "float32": torch.float32}[dtype]
