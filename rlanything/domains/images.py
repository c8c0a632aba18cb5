"""Images that environments show, kept once by their content: `images/ab/abcd....png` in the run's folder."""

import hashlib
import os
from pathlib import Path


class ImageStore:
    """A folder of image files, each named after its content, so that equal screenshots are one file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, data: bytes, ending: str = ".png") -> str:
        """Keep an encoded image. Returns its path, as observations and messages name it."""
        digest = hashlib.sha256(data).hexdigest()
        path = self.folder / digest[:2] / f"{digest}{ending}"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f".{path.name}.{os.getpid()}")  # hosts of several processes share the folder
            part.write_bytes(data)
            os.replace(part, path)
        return str(path)
