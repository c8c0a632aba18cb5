"""Makes a tiny model of images for the drawn desktops: random weights, then two lessons.

usage: scripts/make_tiny_vision_model.py --out FOLDER [--seed 0] [--level middle] [--eye-update N] [--click-update N]

The lessons take about four minutes on a CPU. A folder that was made from the same code and numbers is kept.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))

from drawn_desktop.lessons import Lessons  # noqa: E402
from drawn_desktop.model import make_model, make_tokenizer, write  # noqa: E402

from rlanything.domains.images import ImageStore  # noqa: E402

LR = 2e-3
SOURCES = (  # code that determines the result
    "scripts/make_tiny_vision_model.py",
    "scripts/drawn_desktop/*.py",
    "rlanything/domains/osworld/actions.py",
    "rlanything/domains/osworld/prompts.py",
    "rlanything/domains/osworld/canvas/*.py",
    "rlanything/learner/*.py",
    "rlanything/engines/*.py",
    "rlanything/conversations.py",
)
MADE = "made.txt"


def digest(arguments: argparse.Namespace) -> str:
    """A digest of the code and the numbers that determine the result."""
    root = Path(__file__).resolve().parents[1]
    numbers = {name: value for name, value in vars(arguments).items() if name != "out"}
    hashed = hashlib.sha256(repr(sorted(numbers.items())).encode())
    for file in sorted(path for pattern in SOURCES for path in root.glob(pattern)):
        hashed.update(file.read_bytes())
    return hashed.hexdigest()


def main() -> None:
    """Make the model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--level", default="middle", choices=["easy", "middle", "hard"])
    parser.add_argument("--eye-update", type=int, default=350, help="updates of the first lesson, 16 screens each")
    parser.add_argument("--click-update", type=int, default=450, help="updates of the second, 8 screens of 7 clicks")
    arguments = parser.parse_args()
    out, key = arguments.out, digest(arguments)
    if (out / MADE).is_file() and (out / MADE).read_text() == key:
        print(f"{out} is up to date")
        return
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    started, tokenizer = time.perf_counter(), make_tokenizer()
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    write(part, make_model(tokenizer, arguments.seed), tokenizer)
    with tempfile.TemporaryDirectory(prefix="lessons_") as screens:
        lessons = Lessons(part, ImageStore(Path(screens)), arguments.level, arguments.seed)
        reports = (
            lessons.teach_eye(arguments.eye_update, 16, LR),
            lessons.teach_clicks(arguments.click_update, 8, 7, LR),
        )
        for lesson in reports:
            for line in lesson:
                print(f"{line}, {time.perf_counter() - started:.0f} s", flush=True)
    size = sum(parameter.numel() for parameter in lessons.lm.parameters())
    write(part, lessons.lm, tokenizer)
    (part / MADE).write_text(key)
    shutil.rmtree(out, ignore_errors=True)
    part.rename(out)
    print(f"{out}: {size / 1e6:.1f}M parameters, vocabulary {len(tokenizer)}")


if __name__ == "__main__":
    main()
