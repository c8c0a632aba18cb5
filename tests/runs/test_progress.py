"""What a person sees: nested phases must not break the display, and piped output holds lines alone."""

import os
import pty
import subprocess
import sys

SCRIPT = """
from rlanything.runs.progress import Progress
p = Progress()
p.start_step("step 1/2")
with p.phase("outer", 2) as outer:
    with p.phase("inner") as inner:
        inner.note("at work")
    p.line("a line")
    outer.advance()
assert set(p.seconds) == {"outer", "inner"}
"""


def test_phases_nest_on_a_terminal():
    main, terminal = pty.openpty()
    done = subprocess.run([sys.executable, "-c", SCRIPT], stdout=terminal, stderr=terminal, check=False, timeout=60)
    os.close(terminal)
    shown = os.read(main, 65536).decode()
    assert done.returncode == 0, shown
    assert "a line" in shown and "step 1/2 outer" in shown


def test_piped_output_holds_lines_alone():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["a", "line"] and done.stderr == ""
