"""The oracle: runs OSWorld's own set-up and evaluators (desktop-env 1.0.2) for desktops that it reaches over TCP.

It runs under a Python of its own and imports nothing of the project. It reads a request a line and writes an answer a
line. Every request has a process of its own, forked after the slow imports: one that hangs is killed, and none leaves
a state behind. What a desktop holds is read, and never executed.
"""

import ast
import ctypes
import json
import os
import selectors
import shutil
import signal
import sys
import tempfile
import time
import traceback
import types
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

POLL_S = 0.2
LARGEST_ANSWER = 2**20  # bytes; an evaluator reads what the agent wrote, and may be made to write here
UNDUMPABLE = 4, 0  # PR_SET_DUMPABLE
STILL_S = 5.0  # longest wait for a screen that stands still after keys that save a file
COMMANDS = ("execute", "execute_with_verification", "run_python", "run_bash_script")  # routes
LOCKED = "Permission denied"  # of a file that the agent locked
sent: list[str] = []  # faults of the guest's answers to set-up steps: OSWorld's controller only logs them
broken: list[str] = []  # faults of the guest's server in an evaluation: OSWorld's controller takes them for no file


class Unavailable(Exception):
    """A file or an address that may not be fetched."""


def guard_requests(files: Path, network: bool, host: str, port: int) -> None:
    """Serve files of the mirror in place of the network, and note what the guest's server at `port` fails at."""
    import requests

    real = requests.sessions.Session.request

    def request(session: Any, method: str, url: str, **given: Any) -> Any:
        if url.startswith((f"http://{host}:", "http://localhost:")):
            return asked(url, url.startswith(f"http://{host}:{port}/"), lambda: real(session, method, url, **given))
        digest = uuid.uuid5(uuid.NAMESPACE_URL, url)  # OSWorld's cache puts the name on the desktop behind it
        if found := sorted(files.glob(f"{digest}_*")):
            return from_file(url, found[0])
        if not network:
            path = files / f"{digest}_{os.path.basename(url.partition('?')[0])}"
            raise Unavailable(
                f"{url} is needed; fetch it once, curl -Lo '{path}' --create-dirs '{url}', or set "
                "dataset.options.network to true"
            )
        return real(session, method, url, **given)

    requests.sessions.Session.request = request  # type: ignore[method-assign, assignment]


def asked(url: str, of_server: bool, ask: Callable[[], Any]) -> Any:
    """The answer of a desktop. What its server fails at is noted. A program or a command that fails is a state."""
    import requests

    path = url.partition("//")[2].partition("/")[2]
    try:
        answer = ask()
    except requests.RequestException as error:
        if of_server and (path not in COMMANDS or isinstance(error, requests.ConnectionError)):
            broken.append(f"/{path}: {type(error).__name__}: {error}")
        raise
    if "setup/" in path:
        note(path.rpartition("setup/")[2], answer)
    elif of_server and answer.status_code >= 500 and path not in COMMANDS and LOCKED not in answer.text:
        broken.append(f"/{path} answered {answer.status_code}: {answer.text.strip()[-300:]}")
    return answer


def from_file(url: str, path: Path) -> Any:
    """A file as the answer of a server."""
    import requests

    answer = requests.Response()
    answer.status_code, answer.url, answer.raw = 200, url, path.open("rb")
    answer.headers["Content-Length"] = str(path.stat().st_size)
    return answer


def note(step: str, answer: Any) -> None:
    """Note a set-up step that failed in the guest."""
    try:
        body = answer.json()
    except ValueError:
        body = {}
    code = body.get("returncode", 0) if isinstance(body, dict) else 0
    if answer.status_code != 200:
        sent.append(f"{step}: the desktop answered {answer.status_code}: {answer.text.strip()[-300:]}")
    elif code:
        sent.append(f"{step}: the command ended with {code}: {str(body.get('error', '')).strip()[-300:]}")


def set_up(controller: Any, config: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Take the steps one by one, up to the first that fails."""
    steps: list[dict[str, Any]] = []
    for number, step in enumerate(config, 1):
        sent.clear()
        try:
            done = controller.setup([step], False)
            failed = sent[0] if sent else "" if done is not False else "the set-up gave up"
        except Exception as error:
            failed = sent[0] if sent else f"{type(error).__name__}: {error}"
        steps.append({"number": number, "type": step["type"], "failed": failed})
        if failed:
            break
    return steps


def evaluate(env: Any, controller: Any, task: dict[str, Any]) -> float:
    """The score, as OSWorld's `DesktopEnv.evaluate` computes it, but that a fault is raised.

    With `conj: or` a missing file counts 0 there too; OSWorld then took the state of the metric before.
    """
    from desktop_env.evaluators import getters, metrics

    evaluator = task["evaluator"]
    if evaluator.get("postconfig"):
        controller.setup(evaluator["postconfig"], False)
        wait_still(env)
    many, both = isinstance(evaluator["func"], list), evaluator.get("conj", "and") == "and"
    functions = evaluator["func"] if many else [evaluator["func"]]
    results, expected = (evaluator.get(name) or None for name in ("result", "expected"))
    options = evaluator.get("options") or {}
    scores = []
    for i, function in enumerate(functions):
        result: Any = results[i] if many and results else results
        wanted = expected[i] if many and expected else expected
        extra = (options[i] if isinstance(options, list) else options) or {}
        try:
            given = [getattr(getters, f"get_{result['type']}")(env, result)]
        except FileNotFoundError:  # the desktop lacks what was asked for
            score = 0.0
        else:
            if wanted:
                given.append(getattr(getters, f"get_{wanted['type']}")(env, wanted))
            score = float(getattr(metrics, function)(*given, **extra))
        if many and score == (0.0 if both else 1.0):  # the rest is not looked at
            return score
        scores.append(score)
    return sum(scores) / len(scores) if both else max(scores)


def wait_still(env: Any) -> None:
    """Wait until two screenshots agree: OSWorld's own pauses are too short for a busy machine. Our guests wait for
    their programs, too; others leave `still` unread."""
    import requests

    requests.get(f"{env.controller.http_server}/screenshot", params={"still": STILL_S}, timeout=2 * STILL_S)
    until, shown = time.monotonic() + STILL_S, env.controller.get_screenshot()
    while time.monotonic() < until:
        time.sleep(POLL_S)
        before, shown = shown, env.controller.get_screenshot()
        if before == shown:
            return


def answer(request: dict[str, Any], cache: str) -> dict[str, Any]:
    """Do what a request asks."""
    from desktop_env.controllers.python import PythonController
    from desktop_env.controllers.setup import SetupController

    address, task = request["address"], request["task"]
    guard_requests(Path(request["files"]), request["network"], address["host"], address["server"])
    os.chdir(cache)
    host, ports = address["host"], (address["server"], address["chromium"], address["vlc"])
    width, height = request["screen"]
    python = PythonController(host, ports[0])
    python.retry_interval = 0.3
    controller = SetupController(
        vm_ip=host, server_port=ports[0], chromium_port=ports[1], vlc_port=ports[2], cache_dir=cache,
        client_password="password", screen_width=width, screen_height=height,
    )  # fmt: skip
    if request["call"] == "set_up":
        return {"steps": set_up(controller, task["config"])}
    env = types.SimpleNamespace(
        vm_ip=host, server_port=ports[0], chromium_port=ports[1], vlc_port=ports[2], cache_dir=cache,
        current_use_proxy=False, vm_platform="Linux", controller=python, vm_screen_size=(width, height),
        setup_controller=controller,
    )  # fmt: skip
    score = evaluate(env, controller, task)
    return {"error": f"the desktop failed: {broken[0]}"} if broken else {"score": score}


def work(request: dict[str, Any], cache: str, out: int) -> None:
    """A request's own process."""
    os.setsid()  # browsers' drivers end with it
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):  # evaluators print, and this process's output is for answers
        os.dup2(nowhere, fd)
    try:
        found = answer(request, cache)
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        found = {"error": f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"[:1000]}
    with os.fdopen(out, "w") as file:
        file.write(json.dumps(found))


def serve() -> None:
    """Fork a process for each request; pass on what it says, or that it said nothing in its time."""
    ctypes.CDLL(None).prctl(*UNDUMPABLE, 0, 0, 0)  # a request's process cannot reach this one's files through /proc
    without_easyocr()
    import desktop_env.controllers.setup  # noqa: F401 (the slow imports, once)
    import desktop_env.evaluators.getters
    import desktop_env.evaluators.metrics  # noqa: F401
    from desktop_env.evaluators import metrics
    from desktop_env.evaluators.metrics import basic_os

    metrics.check_python_file_by_test_suite = not_executed
    basic_os.eval = ast.literal_eval  # it would execute what the desktop's settings hold
    watched, running = selectors.DefaultSelector(), dict[int, Any]()
    watched.register(0, selectors.EVENT_READ)
    print("ready", flush=True)
    pending, owner_is_there = b"", True
    while owner_is_there:
        for key, _ in watched.select(POLL_S):
            if key.fd != 0 and key.fd not in running:  # a request that was cancelled just now
                continue
            block = os.read(key.fd, 1 << 20)
            if key.fd != 0:
                running[key.fd][2].extend(block)
                if not block or len(running[key.fd][2]) > LARGEST_ANSWER:
                    finish(watched, running, key.fd)
                continue
            if not block:
                owner_is_there = False
            *lines, pending = (pending + block).split(b"\n")
            for line in lines:
                request = json.loads(line)
                if request["call"] == "cancel":
                    for fd in [fd for fd, (*_, number, _) in running.items() if number == request["number"]]:
                        finish(watched, running, fd)
                    continue
                reading, writing = os.pipe()
                cache = tempfile.mkdtemp(prefix="rlanything-oracle-")
                child = os.fork()
                if child == 0:
                    os.close(reading)
                    work(request, cache, writing)
                    os._exit(0)
                os.close(writing)
                running[reading] = (child, time.monotonic() + request["limit_s"], bytearray(), request["number"], cache)
                watched.register(reading, selectors.EVENT_READ)
        for fd in [fd for fd, (_, until, *_) in running.items() if time.monotonic() > until or not owner_is_there]:
            finish(watched, running, fd)


def without_easyocr() -> None:
    """Let evaluators import easyocr, which needs torch. One of them uses it, and fails."""

    class Reader:
        def __init__(self, *given: Any, **options: Any) -> None:
            raise Unavailable("this evaluator needs easyocr, which scripts/osworld_oracle.sh leaves out")

    stub: Any = types.ModuleType("easyocr")
    stub.Reader = Reader
    sys.modules.setdefault("easyocr", stub)


def not_executed(*given: Any, **options: Any) -> float:
    """Stand in for OSWorld's metric that executes a Python file of the desktop beside the scores of other episodes."""
    raise Unavailable("this evaluator executes a file that the agent wrote, and is left out")


def finish(watched: selectors.DefaultSelector, running: dict[int, Any], fd: int) -> None:
    """End a request's process and its children, and answer."""
    child, until, told, number, cache = running.pop(fd)
    for kill in (os.killpg, os.kill):  # a process that was forked just now has no group yet
        with suppress(ProcessLookupError):
            kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    shutil.rmtree(cache, ignore_errors=True)
    watched.unregister(fd)
    os.close(fd)
    late = "it took too long" if time.monotonic() > until else "its process ended without an answer"
    print(json.dumps({**(said(told) or {"error": late}), "number": number}), flush=True)


def said(told: bytes) -> dict[str, Any]:
    """Return the object that a request's process told, or an empty one: the agent's code may have written it."""
    try:
        found = json.loads(told)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


if __name__ == "__main__":
    serve()
