"""An entry point that fails prints the whole message without a traceback and exits with a non-zero status."""

import signal
import subprocess
import sys
import time

import pytest

from rlanything.errors import ClearError
from rlanything.processes.guard import run_guarded


def test_a_message_with_brackets_is_shown_as_it_is(capsys):
    def main():
        raise ClearError('expected [low, high]; run pip install "textworld[pddl]==1.7.0" [/]')

    with pytest.raises(SystemExit) as stopped:
        run_guarded(main)
    said = " ".join(capsys.readouterr().err.split())
    assert stopped.value.code == 1 and 'expected [low, high]; run pip install "textworld[pddl]==1.7.0" [/]' in said


def test_an_error_of_rays_own_is_one_message_and_a_bug_in_a_remote_call_keeps_its_traceback(capsys):
    from ray.exceptions import OutOfDiskError, RayTaskError

    def main(error):
        raise error

    with pytest.raises(SystemExit) as stopped:
        run_guarded(lambda: main(OutOfDiskError("no space in the object store")))
    assert stopped.value.code == 1
    assert "Ray failed (OutOfDiskError)" in capsys.readouterr().err
    with pytest.raises(RayTaskError):
        run_guarded(lambda: main(RayTaskError("f", "its traceback", ValueError())))


STAGE = """
import pathlib, signal, sys, time
def stop(*_):
    pathlib.Path({note!r}).write_text("stopped in its own way")
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
pathlib.Path({ready!r}).touch()
time.sleep(60)
"""


def test_a_quickstart_that_is_terminated_lets_its_stage_end_itself(tmp_path):
    note, ready = tmp_path / "note", tmp_path / "ready"
    stage = STAGE.format(note=str(note), ready=str(ready))
    code = f"import sys; sys.path.insert(0, 'scripts'); from quickstart import run; sys.exit(run(['-c', {stage!r}]))"
    process = subprocess.Popen([sys.executable, "-c", code])
    while not ready.exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143 and note.read_text() == "stopped in its own way"


LINES = """
from rlanything.processes.guard import run_guarded
from rlanything.runs.progress import Progress
run_guarded(lambda: Progress().line("a line of a run"))
"""


@pytest.mark.parametrize("words", [["-m", "rlanything", "train", "--help"], ["-c", LINES]], ids=["help", "a run"])
def test_a_reader_that_leaves_ends_the_command_without_a_traceback(words):
    """`rlanything train --help | head` does so."""
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(30) == 128 + signal.SIGPIPE


def test_a_broken_pipe_of_any_other_reader_keeps_its_traceback():
    def main():
        raise BrokenPipeError("of a socket")

    with pytest.raises(BrokenPipeError, match="of a socket"):
        run_guarded(main)


def test_a_file_that_may_not_be_read_is_one_message(capsys):
    def main():
        raise PermissionError(13, "Permission denied", "/models/policy/config.json")

    with pytest.raises(SystemExit) as stopped:
        run_guarded(main)
    said = " ".join(capsys.readouterr().err.split())
    assert stopped.value.code == 1 and "/models/policy/config.json: Permission denied; change its rights" in said
