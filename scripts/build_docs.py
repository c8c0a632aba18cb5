"""Fill the code blocks of docs/*.md from the examples that they name: `<!-- examples/sums.py play -->` before a block
stands for the region between `# [play]` and `# [/play]` of that file.

`python scripts/build_docs.py` writes them; `--check` only says which pages are not up to date.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(<!-- (?P<file>\S+\.py) (?P<region>\w+) -->\n```python\n).*?(```)", re.DOTALL)


def region(file: Path, name: str) -> str:
    """The lines of a region, without linters' marks. Raises SystemExit naming a region that is not there."""
    found = re.search(
        rf"^# \[{name}\]\n(.*?)^# \[/{name}\]$", file.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    if not found:
        raise SystemExit(f"{file}: has no region {name}; expected lines # [{name}] and # [/{name}]")
    return re.sub(r"  # noqa: \w+$", "", found[1].strip() + "\n", flags=re.MULTILINE)


def built(page: str) -> str:
    """A page with its blocks filled."""
    return BLOCK.sub(lambda m: m[1] + region(ROOT / m["file"], m["region"]) + m[4], page)


def main() -> None:
    """Write, or check, every page."""
    stale = []
    for path in sorted((ROOT / "docs").glob("*.md")):
        page = path.read_text(encoding="utf-8")
        if (new := built(page)) != page:
            stale.append(path.name)
            if "--check" not in sys.argv:
                path.write_text(new, encoding="utf-8")
    print("\n".join(f"docs/{name}" for name in stale) or "all pages are up to date")
    if stale and "--check" in sys.argv:
        sys.exit("run python scripts/build_docs.py")


if __name__ == "__main__":
    main()
