"""Images that environments show, kept once by their content: `images/ab/abcd....png` in the run's folder."""

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from rlanything.errors import RunError


class ImageStore:
    """A folder of image files, each named after its content, so that equal screenshots are one file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, data: bytes, ending: str = ".png") -> str:
        """Keep an encoded image. Returns its path, as observations and messages name it.

        Raises RunError if the disk refuses: no other episode could keep its images either.
        """
        digest = hashlib.sha256(data).hexdigest()
        path = self.folder / digest[:2] / f"{digest}{ending}"
        if not path.is_file():
            part = path.with_name(f".{path.name}.{os.getpid()}")  # hosts of several processes share the folder
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                part.write_bytes(data)
                os.replace(part, path)
            except OSError as error:
                with suppress(OSError):
                    part.unlink()
                raise RunError(
                    f"{path}: the image could not be written ({error}); free space if the disk is full, then run the "
                    "same command again"
                ) from error
        return str(path)
