"""`dtype: auto` never makes a CPU emulate bfloat16."""

import pytest
import torch

from rlanything.weights.precision import torch_dtype


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"avx2": True, "avx512_bf16": False}, torch.float32),
        ({"avx512_bf16": True}, torch.bfloat16),
        ({}, torch.float32),
    ],
)
def test_auto_is_bfloat16_only_if_the_cpu_multiplies_it(monkeypatch, capabilities, expected):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert torch_dtype("auto", on_accelerator=False) is expected
    assert torch_dtype("auto", on_accelerator=True) is torch.bfloat16  # assumed of another machine


@pytest.mark.parametrize(("native", "expected"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_is_bfloat16_only_if_the_accelerator_multiplies_it(monkeypatch, native, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native or including_emulation)
    assert torch_dtype("auto", on_accelerator=True) is expected


def test_an_explicit_dtype_is_kept(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    assert torch_dtype("bfloat16", on_accelerator=False) is torch.bfloat16
    assert torch_dtype("float32", on_accelerator=True) is torch.float32
