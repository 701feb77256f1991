"""As much of Hugging Face's hub as `huggingface_hub` asks of it to make a repository and upload into it."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

OWNER, TOKEN = "me", "hf_of_me"


class HubServer(ThreadingHTTPServer):
    """A hub with one account.

    Attributes:
        repositories: {``owner/name``: {path: content}}.
        private: those that are.
        messages: of the commits, in order.
        full: uploads fail.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.messages: list[str] = []
        self.stored: dict[str, bytes] = {}
        self.full = False


class Handler(BaseHTTPRequestHandler):
    server: HubServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def answer(self, value: object, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if isinstance(value, dict) and "error" in value:
            self.send_header("X-Error-Message", value["error"])
        self.end_headers()
        self.wfile.write(body)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers["Content-Length"]))

    def do_PUT(self) -> None:
        self.server.stored[self.path.rpartition("/")[2]] = self.body()
        self.answer({})

    def do_POST(self) -> None:
        body, path, hub = self.body(), self.path, self.server
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            self.answer({"error": "Invalid username or password."}, 401)
        elif path == "/api/repos/create":
            asked = json.loads(body)
            owner = asked.get("organization") or OWNER
            name = f"{owner}/{asked['name']}"
            if owner != OWNER:
                self.answer({"error": f"You don't have the rights to create a model under {owner}"}, 403)
                return
            status = 409 if name in hub.repositories else 200
            hub.repositories.setdefault(name, {})
            hidden = asked.get("private") or asked.get("visibility") == "private"  # as releases of the client say it
            hub.private |= {name} if hidden and status == 200 else set()
            self.answer({"url": f"{hub.url}/{name}", "name": name}, status)
        elif path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif path.endswith("/preupload/main"):
            files = json.loads(body)["files"]
            large = {True: "lfs", False: "regular"}
            kinds = [{"path": one["path"], "uploadMode": large[one["path"].endswith(".safetensors")]} for one in files]
            self.answer({"files": [{**one, "shouldIgnore": False} for one in kinds]})
        elif path.endswith("/info/lfs/objects/batch"):
            objects = json.loads(body)["objects"]
            places = [{**one, "actions": {"upload": {"href": f"{hub.url}/store/{one['oid']}"}}} for one in objects]
            self.answer({"transfer": "basic", "objects": places})
        elif path.endswith("/commit/main") and not hub.full:
            self.commit(path.removeprefix("/api/models/").removesuffix("/commit/main"), body)
        else:
            self.answer({"error": "Storage limit reached"}, 403)

    def commit(self, name: str, body: bytes) -> None:
        hub = self.server
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                hub.messages.append(value["summary"])
            else:
                lfs = line["key"] == "lfsFile"
                content = hub.stored[value["oid"]] if lfs else base64.b64decode(value["content"])
                hub.repositories[name][value["path"]] = content
        address = f"{hub.url}/{name}/commit/{len(hub.messages):040x}"
        self.answer({"commitUrl": address, "commitOid": address[-40:], "success": True})


@contextlib.contextmanager
def running() -> Iterator[HubServer]:
    """A hub that runs within the block."""
    with HubServer() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
