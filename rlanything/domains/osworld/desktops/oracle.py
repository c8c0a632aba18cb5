"""Client of the oracle: OSWorld's own set-up and evaluators, in a process of their own with their own packages.

The process is isolated, because it reads files that agents wrote: it sees its packages, nothing of the user's, and
cannot write outside a folder in memory. It shares the machine's network, for the loopback leads it to desktops.
"""

import asyncio
import itertools
import json
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlanything.domains.osworld.desktops.client import DesktopFault
from rlanything.domains.osworld.desktops.forwarding import Address
from rlanything.domains.osworld.desktops.isolation import FILES, oracle_command
from rlanything.domains.osworld.desktops.tasks import Family, Verifier
from rlanything.domains.osworld.options import OsworldOptions
from rlanything.errors import TaskError

SERVER = Path(__file__).parent / "oracle_server.py"
START_S = 180.0  # time that the evaluators have to be imported
END_S = 5.0  # time that the process has to end by itself
GRACE_S = 10.0  # beyond a call's own limit


class Oracle:
    """One process for all desktops of this process. It starts when it is first needed, and ends with its input."""

    def __init__(self, options: OsworldOptions) -> None:
        self.options, self.python = options, Path(options.oracle) / "bin" / "python"
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: dict[int, Future[dict[str, Any]]] = {}
        self._numbers = itertools.count()
        self._starting, self._writing = threading.Lock(), threading.Lock()

    def check(self) -> None:
        """Raises TaskError if it is not installed."""
        if not self.python.exists():
            raise TaskError(
                f"{self.options.oracle}: OSWorld's evaluators are not there, and tasks of this split need them; run "
                "scripts/osworld_oracle.sh, or name their folder with dataset.options.oracle"
            )
        if not shutil.which("bwrap"):
            raise TaskError("OSWorld's evaluators run isolated, and bubblewrap is missing: apt-get install bubblewrap")

    async def set_up(self, family: Family, address: Address, screen: Sequence[int]) -> None:
        """OSWorld's set-up of a task on a `screen` [pixels]. Raises DesktopFault, which names the step that failed."""
        answer = await self._call("set_up", {"config": list(family.config)}, address, screen, self.options.setup_s)
        if failed := [step for step in answer["steps"] if step["failed"]]:
            told = failed[0]["failed"].replace(f"{FILES}/", f"{self.options.files}/")
            raise DesktopFault(f"set-up step {failed[0]['number']} ({failed[0]['type']}): {told}")

    async def evaluate(self, verifier: Verifier, family: Family, address: Address, screen: Sequence[int]) -> float:
        """The score of OSWorld's evaluator, from 0 to 1. Raises DesktopFault if it broke."""
        task = {"id": family.id, "evaluator": dict(verifier.evaluator), "instruction": verifier.instruction}
        answer = await self._call("evaluate", task, address, screen, self.options.evaluate_s)
        score = answer.get("score")
        if not isinstance(score, (int, float)) or not 0 <= score <= 1:
            raise DesktopFault(f"OSWorld's evaluate: found the score {score!r:.60}, expected a number from 0 to 1")
        return float(score)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            process, self._process = self._process, None
            assert process.stdin
            process.stdin.close()  # it ends its requests' processes, then itself
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    async def _call(
        self, what: str, task: Mapping[str, Any], address: Address, screen: Sequence[int], limit_s: float
    ) -> dict[str, Any]:
        process = await asyncio.to_thread(self._started)
        number, options = next(self._numbers), self.options
        answered = self._waiting[number] = Future()
        request = {
            "number": number, "call": what, "task": task, "address": asdict(address), "limit_s": limit_s,
            "files": FILES, "network": options.network, "screen": list(screen),
        }  # fmt: skip
        try:
            self._send(process, request)
            async with asyncio.timeout(limit_s + GRACE_S):
                answer = await asyncio.wrap_future(answered)
        except TimeoutError:
            raise DesktopFault(f"OSWorld's {what} did not end within {limit_s:g} s") from None
        except OSError as error:
            raise DesktopFault(f"OSWorld's {what}: the oracle's process ended ({error})") from error
        except asyncio.CancelledError:
            with suppress(OSError, ValueError):  # it has ended
                self._send(process, {"call": "cancel", "number": number})  # its ports may soon lead to another desktop
            raise
        finally:
            self._waiting.pop(number, None)
        if answer.get("error"):
            told = answer["error"].replace(f"{FILES}/", f"{options.files}/")
            raise DesktopFault(f"OSWorld's {what}: {told}")
        return answer

    def _send(self, process: subprocess.Popen[bytes], request: Mapping[str, Any]) -> None:
        assert process.stdin
        with self._writing:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()

    def _started(self) -> subprocess.Popen[bytes]:
        with self._starting:
            if self._process is None or self._process.poll() is not None:
                self._process = self._start()
            return self._process

    def _start(self) -> subprocess.Popen[bytes]:
        """Start it in a thread that lives as long: bubblewrap ends with the thread that started it (PDEATHSIG)."""
        self.check()
        started: Future[subprocess.Popen[bytes]] = Future()
        threading.Thread(target=self._serve, args=(started,), daemon=True).start()
        return started.result()

    def _serve(self, started: Future[subprocess.Popen[bytes]]) -> None:
        try:
            process = self._begun()
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result(process)
        self._read(process)

    def _begun(self) -> subprocess.Popen[bytes]:
        told = tempfile.TemporaryFile()
        pipe, command = subprocess.PIPE, oracle_command(self.python, SERVER, Path(self.options.files))
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=told, env={})
        late = threading.Timer(START_S, process.kill)
        late.start()
        assert process.stdout
        ready = process.stdout.readline()
        late.cancel()
        if not ready:
            process.wait()
            told.seek(0)
            last = told.read().decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
            raise TaskError(
                f"{self.options.oracle}: OSWorld's evaluators did not start ({last[0]}); run scripts/osworld_oracle.sh "
                "again"
            )
        return process

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        """Hand out answers until the process ends."""
        assert process.stdout
        for line in process.stdout:
            answer = json.loads(line)
            if (future := self._waiting.get(answer["number"])) and not future.done():
                future.set_result(answer)
        for future in list(self._waiting.values()):
            if not future.done():
                future.set_result({"error": "the oracle's process ended"})
