"""Tells which verifiers a backend can be used with: their set-up succeeds, and an untouched desktop scores 0.

scripts/osworld_admission.py tries them and writes the file. Generated families need none: their scripts are tests.
"""

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

SCORES = "an untouched desktop scores"  # begins a reason
logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Admission:
    """Tells which verifiers one backend can be used with."""

    path: Path | None = None
    """The file that tells it; None if the families are generated."""
    tried: Mapping[str, str] = field(default_factory=dict)
    """Verifiers (`family/verifier`) that were tried, with the reason why they cannot be used, or an empty text."""

    @classmethod
    def read(cls, path: Path) -> "Admission":
        """Read a file. If it is not there, no verifier was tried."""
        return cls(path=path, tried=json.loads(path.read_bytes()) if path.is_file() else {})

    def why(self, verifier: str) -> str:
        """Return why a verifier cannot be used; empty if it can, or if nobody tried."""
        return self.tried.get(verifier, "")

    def warn(self, split: str, verifiers: Iterable[str]) -> None:
        """Tell how many of a split's verifiers were never tried."""
        if self.path is None:
            return
        known = list(verifiers)
        if untried := [verifier for verifier in known if verifier not in self.tried]:
            logger.warning(
                "%s: %d of the %d verifiers of split %s were not tried (%s first). They count, although this backend "
                "may be unable to set them up, or solve them untouched; scripts/osworld_admission.py tries them",
                self.path, len(untried), len(known), split, untried[0],
            )  # fmt: skip
