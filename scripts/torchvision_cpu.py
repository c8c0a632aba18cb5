"""Lets torchvision be imported beside a CPU build of torch. Run as a script, it installs itself into the environment.

PyPI has torchvision's wheels for CUDA only. Beside a CPU build of torch their compiled operators do not load, and the
import fails at the two operators that torchvision describes to torch without asking whether they exist. This hook
declares both first. Nothing here calls them: vLLM and transformers use torchvision's transforms, which are Python.
The file `torchvision_cpu.pth` beside it makes every start of Python import it (docs.python.org, module `site`).
"""

import shutil
import sys
import sysconfig
from importlib.abc import MetaPathFinder
from pathlib import Path


class Declaration(MetaPathFinder):
    """Declares the operators when torchvision is first imported, and finds nothing itself."""

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            if not torch.version.cuda:
                self.library = torch.library.Library("torchvision", "DEF")
                for operator in ("nms", "qnms"):
                    self.library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
                sys.modules["torchvision_cpu"].declaration = self  # torch forgets what nobody holds
        return None


if __name__ == "__main__":
    packages = Path(sysconfig.get_paths()["purelib"])
    shutil.copyfile(__file__, packages / "torchvision_cpu.py")
    (packages / "torchvision_cpu.pth").write_text("import torchvision_cpu\n")
else:
    sys.meta_path.insert(0, Declaration())
