"""A guest server of OSWorld's kind, in miniature, with faults to order: `python fake_guest.py PORT FAULT`."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from PIL import Image

FAULT = sys.argv[2] if len(sys.argv) > 2 else ""
shots = 0


class Guest(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections stay open

    def do_GET(self):
        global shots
        if self.path != "/screenshot":
            return self.answer(404, b"")
        shots += 1
        if FAULT == "hang" and shots > 1:
            time.sleep(3600)
        if FAULT == "error" and shots > 1:
            return self.answer(500, b"no screen")
        if FAULT == "no picture" and shots > 1:
            return self.answer(200, b"no picture at all")
        if FAULT == "die" and shots > 2:
            sys.stdout.flush()
            import os

            os._exit(1)
        content = io.BytesIO()
        colour = {"black": "black", "restless": (shots % 256, 0, 0)}.get(FAULT, "navy")
        Image.new("RGB", (640, 480), colour).save(content, "PNG")
        return self.answer(200, content.getvalue())

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/file" and FAULT in ("locked file", "broken file"):
            return self.answer(500, b"Permission denied: 'a'" if FAULT == "locked file" else b"disk is gone")
        if self.path != "/execute":
            return self.answer(200, b"{}")
        asked = json.loads(body)
        print(json.dumps(asked["command"]), flush=True)
        command = asked["command"]
        if command[0] == "python":  # there is no screen
            return self.answer(200, json.dumps({"output": "", "error": "", "returncode": 0}).encode())
        done = subprocess.run(command, shell=asked["shell"], capture_output=True, text=True)
        told = {"output": done.stdout, "error": done.stderr, "returncode": done.returncode}
        return self.answer(200, json.dumps(told).encode())

    def answer(self, status, content):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *given):
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Guest)
    print(f"port {server.server_port}", flush=True)
    server.serve_forever()
