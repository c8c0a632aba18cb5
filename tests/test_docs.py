"""The pages of docs/: they build as a site without a warning, and their figures are those of their examples."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("material", reason='pip install -e ".[docs]"')
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert built.returncode == 0, built.stderr
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    missing = {page for page in pages - {"index"} if not (tmp_path / "site" / page / "index.html").is_file()}
    assert not missing
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert not [page for page in pages if f"{page}.md" not in nav], "a page that the site's menu lacks"


@pytest.mark.parametrize(("example", "num_line"), [("feedback_in_numbers", 8), ("tasks_in_numbers", 6)])
def test_the_feedbacks_in_numbers_are_those_of_the_code(example, num_line):
    command = [sys.executable, f"examples/{example}.py"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True).stdout
    assert printed.count("\n") == num_line and printed in (ROOT / "docs/concepts.md").read_text(encoding="utf-8")
