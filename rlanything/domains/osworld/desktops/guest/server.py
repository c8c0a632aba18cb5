"""The program inside a desktop that answers OSWorld's HTTP routes, and a few of our own.

It runs under the desktop's own Python, and imports nothing of the project. It gets listening sockets as file
descriptors: its own, and one for each of FORWARDED. Own routes: /capabilities, /input and
/type (events from this process, which saves a process for each), and /screenshot?still=SECONDS. OSWorld's controllers
and evaluators use all others. Source of the routes: github.com/xlang-ai/OSWorld, desktop_env/server.
"""

from __future__ import annotations

import asyncio
import functools
import io
import logging
import os
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from first import become_second

HERE = Path(__file__).parent

if __name__ == "__main__":  # pyautogui needs the screen when it is imported
    become_second()
    subprocess.run(["/bin/bash", str(HERE / "start.sh")], check=True, stdin=subprocess.DEVNULL)

import limits  # noqa: E402
import programs  # noqa: E402
import pyautogui  # noqa: E402
import typewriter  # noqa: E402
from flask import Flask, Response, jsonify, request, send_file  # noqa: E402
from PIL import Image, ImageGrab  # noqa: E402
from werkzeug.serving import make_server  # noqa: E402
from Xlib import X, display  # noqa: E402

FORWARDED = (9222, 8080)  # ports of Chromium's developer tools and of VLC's interface, which evaluators read
OPEN_S = 60.0  # time that an application has to show a window for a file
RUN_S = 120.0  # time that a command has
POLL_S = 0.1  # between two looks at a screen that may still change

pyautogui.FAILSAFE = False
pyautogui.PAUSE = 0
app = Flask("guest")
screen = display.Display()
one_at_a_time = threading.Lock()  # the connection to the X server is shared


def path_of(text: str) -> str:
    """A path with `~` and variables replaced."""
    return os.path.expandvars(os.path.expanduser(text))


def asked_command(asked: dict[str, Any]) -> tuple[Any, bool]:
    """(command, whether a shell runs it) of a request."""
    command, shell = asked["command"], bool(asked.get("shell", False))
    if isinstance(command, str):
        return (command, True) if shell else (shlex.split(command), False)
    command = [os.path.expanduser(part) if part.startswith("~/") else part for part in command]
    return (command[0] if len(command) == 1 else command, True) if shell else (command, False)


def run(command: Any, shell: bool = False, timeout: float = RUN_S, cwd: str | None = None) -> dict[str, Any]:
    """Run a command to its end."""
    done = subprocess.run(
        command, shell=shell, capture_output=True, text=True, errors="replace", timeout=timeout, cwd=cwd,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return {"status": "success", "output": done.stdout, "error": done.stderr, "returncode": done.returncode}


def start(command: Any, shell: bool = False) -> None:
    """Start a program that goes on by itself."""
    with open("/tmp/applications.log", "ab") as log:
        subprocess.Popen(command, shell=shell, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


@app.errorhandler(Exception)
def failed(error: Exception) -> tuple[Response, int]:
    """Every fault of a route is an answer."""
    return jsonify(status="error", message=f"{type(error).__name__}: {error}", output="", error=str(error)), 500


@app.get("/capabilities")
def capabilities() -> Response:
    return jsonify(input=True, still=True)


@app.get("/screenshot")
def screenshot() -> Response:
    """The screen with the pointer, as a PNG. `still` waits until two looks agree and no program works between them, or
    that many seconds at most: on a busy machine the window of a program that starts is empty for a while, and still."""
    limit, started = float(request.args.get("still", 0)), time.monotonic()
    shown = grab()
    while time.monotonic() - started < limit:
        worked = programs.working()
        time.sleep(POLL_S)
        before, shown = shown, grab()
        if not (worked or programs.working()) and before.tobytes() == shown.tobytes():
            break
    settled_s = time.monotonic() - started
    content = io.BytesIO()
    with_pointer(shown).save(content, "PNG", compress_level=1)
    content.seek(0)
    answer = send_file(content, mimetype="image/png")
    answer.headers["X-Settled-Seconds"] = f"{settled_s:.3f}"
    return answer


def grab() -> Image.Image:
    return ImageGrab.grab(xdisplay=os.environ["DISPLAY"])


def with_pointer(image: Image.Image) -> Image.Image:
    """The picture of the pointer comes from XFixes: the X server does not draw it into a grab."""
    with one_at_a_time:
        screen.xfixes_query_version()
        pointer = screen.xfixes_get_cursor_image(screen.screen().root)
    if pointer and pointer.width:
        pixels = b"".join(int(p & 0xFFFFFFFF).to_bytes(4, "little") for p in pointer.cursor_image)
        drawn = Image.frombuffer("RGBA", (pointer.width, pointer.height), pixels, "raw", "BGRA", 0, 1)
        image.paste(drawn, (pointer.x - pointer.xhot, pointer.y - pointer.yhot), drawn)
    return image


@app.post("/input")
def send_input() -> Response:
    """Run code of the trainer on pyautogui, in this process."""
    with one_at_a_time:
        exec(request.get_json(force=True)["code"], {"pyautogui": pyautogui, "time": time})
    return jsonify(status="success")


@app.post("/type")
def type_into_focus() -> Response:
    with one_at_a_time:
        typewriter.type_text(screen, request.get_json(force=True)["text"])
    return jsonify(status="success")


@app.post("/execute")
@app.post("/setup/execute")
def execute() -> Response:
    asked = request.get_json(force=True)
    return jsonify(run(*asked_command(asked), timeout=float(asked.get("timeout", RUN_S))))


@app.post("/setup/execute_with_verification")
@app.post("/execute_with_verification")
def execute_with_verification() -> tuple[Response, int]:
    """Run a command, then look until a window of that name is there or another command succeeds."""
    asked = request.get_json(force=True)
    answer, wanted = run(*asked_command(asked)), asked.get("verification", {})
    until = time.monotonic() + float(asked.get("max_wait_time", 10))
    while time.monotonic() < until:
        window, command = wanted.get("window_exists"), wanted.get("command_success")
        if (not window or window in titles()) and (not command or run(command, shell=True)["returncode"] == 0):
            return jsonify(answer), 200
        time.sleep(float(asked.get("check_interval", 1)))
    return jsonify(status="error", message="verification failed", **answer), 500


@app.post("/setup/launch")
def launch() -> str:
    start(*asked_command(request.get_json(force=True)))
    return "launched"


def windows() -> list[tuple[str, str]]:
    """(id, title) of each window."""
    rows = [line.split(None, 3) for line in run(["wmctrl", "-l"])["output"].splitlines()]
    return [(row[0], row[3]) for row in rows if len(row) == 4]


def titles() -> str:
    return "\n".join(title for _, title in windows())


@app.post("/setup/open_file")
def open_file() -> tuple[str, int]:
    """Open a file with its application, and wait for a window with the file's name in its title."""
    path = Path(path_of(request.get_json(force=True)["path"]))
    if not path.exists():
        return f"no such file: {path}", 404
    start(["xdg-open", str(path)])
    until = time.monotonic() + OPEN_S
    while time.monotonic() < until:
        for window, title in windows():
            if path.stem in title:
                run(["wmctrl", "-i", "-a", window])
                return "opened", 200
        time.sleep(0.2)
    return f"no window for {path.name} within {OPEN_S:.0f} s", 500


def window_command(letter: str) -> tuple[str, int]:
    asked = request.get_json(force=True)
    flags = ("x" if asked.get("by_class") else "") + ("F" if asked.get("strict") else "")
    done = run(["wmctrl", f"-{flags}{letter}", asked["window_name"]])
    return ("done", 200) if done["returncode"] == 0 else (f"no window {asked['window_name']}", 404)


@app.post("/setup/activate_window")
def activate_window() -> tuple[str, int]:
    return window_command("a")


@app.post("/setup/close_window")
def close_window() -> tuple[str, int]:
    return window_command("c")


@app.post("/setup/upload")
def upload() -> str:
    path = Path(path_of(request.form["file_path"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    request.files["file_data"].save(path)
    return f"{path.stat().st_size} bytes"


@app.post("/file")
def file() -> Any:
    path = path_of(request.form["file_path"])
    return send_file(path, as_attachment=True) if readable(path) else (jsonify(error="no such file"), 404)


def readable(path: str) -> bool:
    """False of a file that the agent locked, too: what an agent does is no fault of the desktop."""
    return os.path.isfile(path) and os.access(path, os.R_OK)


@app.get("/platform")
def platform() -> str:
    return "Linux"


@app.post("/screen_size")
def screen_size() -> Response:
    shape = screen.screen()
    return jsonify(width=shape.width_in_pixels, height=shape.height_in_pixels)


@app.post("/window_size")
def window_size() -> Any:
    wanted, own = request.form["app_class_name"].lower(), display.Display()
    listed = own.screen().root.get_full_property(own.intern_atom("_NET_CLIENT_LIST"), X.AnyPropertyType)
    for number in listed.value if listed else ():
        window = own.create_resource_object("window", number)
        if wanted in [name.lower() for name in window.get_wm_class() or ()]:
            shape = window.get_geometry()
            return jsonify(width=shape.width, height=shape.height)
    return jsonify(error="no such window"), 404


@app.get("/cursor_position")
def cursor_position() -> Response:
    return jsonify(list(pyautogui.position()))


@app.post("/desktop_path")
def desktop_path() -> Response:
    return jsonify(desktop_path=path_of("~/Desktop"))


@app.post("/wallpaper")
def wallpaper() -> Any:
    stored = run(["gsettings", "get", "org.gnome.desktop.background", "picture-uri"])["output"].strip().strip("'")
    path = stored.removeprefix("file://")
    return send_file(path) if readable(path) else (jsonify(error="no wallpaper"), 404)


@app.post("/setup/change_wallpaper")
def change_wallpaper() -> Response:
    path = path_of(request.get_json(force=True)["path"])
    return jsonify(run(["gsettings", "set", "org.gnome.desktop.background", "picture-uri", f"file://{path}"]))


def tree(path: str) -> dict[str, Any]:
    """A folder as OSWorld's evaluators read it. One that the agent locked has nothing in it."""
    entries = os.scandir(path) if os.access(path, os.R_OK | os.X_OK) else ()
    children = [tree(e.path) if e.is_dir(follow_symlinks=False) else {"type": "file", "name": e.name} for e in entries]
    return {"type": "directory", "name": os.path.basename(path), "children": children}


@app.post("/list_directory")
def list_directory() -> Any:
    path = path_of(request.get_json(force=True)["path"])
    return jsonify(directory_tree=tree(path)) if os.path.isdir(path) else (jsonify(error="not a directory"), 400)


@app.post("/run_python")
def run_python() -> tuple[Response, int]:
    with tempfile.NamedTemporaryFile("w", suffix=".py") as program:
        program.write(request.get_json(force=True)["code"])
        program.flush()
        done = run([sys.executable, program.name], timeout=30)
    return jsonify(message=done["output"], **done), 200 if done["returncode"] == 0 else 500


@app.post("/run_bash_script")
def run_bash_script() -> Response:
    asked = request.get_json(force=True)
    return jsonify(
        run(["bash", "-c", asked["script"]], timeout=asked.get("timeout", 100), cwd=asked.get("working_dir"))
    )


@app.get("/accessibility")
def accessibility() -> Response:
    return jsonify(AT=run([sys.executable, str(HERE / "accessibility.py"), "tree"])["output"])


@app.get("/terminal")
def terminal() -> Response:
    """The text of the terminal's window, as its accessible object holds it."""
    shown = run([sys.executable, str(HERE / "accessibility.py"), "terminal"])["output"].rstrip()
    return jsonify(output=shown or None, status="success")


@app.post("/start_recording")
@app.post("/end_recording")
def recording() -> tuple[Response, int]:
    return jsonify(error="this desktop records no films"), 501


async def forward(sockets: list[int]) -> None:
    """Join connections to these listening sockets with the FORWARDED ports."""
    for port, number in zip(FORWARDED, sockets, strict=True):
        await asyncio.start_unix_server(functools.partial(_join, port), sock=socket.socket(fileno=number))
    await asyncio.Event().wait()


async def _join(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        writer.close()
        return
    await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while block := await reader.read(65536):
            writer.write(block)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


if __name__ == "__main__":
    own, *others = map(int, sys.argv[1:])
    for number in (own, *others):
        os.set_inheritable(number, False)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    threading.Thread(target=asyncio.run, args=(forward(others),), daemon=True).start()
    threading.Thread(target=limits.watch, args=(int(os.environ["SEGMENT_BYTES"]),), daemon=True).start()
    server = make_server("unix:///run/server", 0, app, threaded=True, fd=own)
    with open("/tmp/server.log", "wb") as log:  # what was said up to here reaches the trainer, if this fails
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    server.serve_forever()
