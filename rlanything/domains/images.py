"""Images that environments show, kept once by their content: `images/ab/abcd....png` in the run's folder."""

import errno
import hashlib
import os
import uuid
from contextlib import suppress
from pathlib import Path

from rlanything.errors import RunError

LASTING = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES))  # a retry would not help


class ImageStore:
    """A folder of image files, each named after its content, so that equal screenshots are one file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def put(self, data: bytes, ending: str = ".png") -> str:
        """Keep an encoded image. Returns its path, as observations and messages name it.

        Raises RunError if the disk refuses for good: no other episode could keep its images either.
        """
        digest = hashlib.sha256(data).hexdigest()
        path = self.folder / digest[:2] / f"{digest}{ending}"
        if not path.is_file():
            part = path.with_name(f".{uuid.uuid4().hex}")  # hosts on several machines share the folder
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                part.write_bytes(data)
                os.replace(part, path)
            except OSError as error:
                with suppress(OSError):
                    part.unlink()
                if error.errno not in LASTING:
                    raise
                raise RunError(
                    f"{path}: the image could not be written ({error}); free space if the disk is full, then run the "
                    "same command again"
                ) from error
        return str(path)
