"""A Hub on the loopback: as much of its HTTP API as huggingface_hub uses to push and to download.

Files live in memory. A file over 200 bytes of a binary kind goes through Git LFS ("basic" transfer), every
other one inside the commit, as on the Hub. Any request can be made to fail by a `Fault`.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

BINARY = (".safetensors", ".parquet", ".png")
TOKEN, READER = "hf_writerwriterwriter", "hf_readerreaderreader"


@dataclass
class Fault:
    """What goes wrong: an HTTP status, a `cut` connection, or content that `arrives wrong`."""

    method: str
    path: str
    answer: int | str
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)
    body: str = '{"error": "made to fail"}'


@dataclass
class Repository:
    """Commits of a repository, the newest last: id, message, and files as content and whether by LFS."""

    private: bool
    commits: list[tuple[str, str, dict[str, tuple[bytes, bool]]]] = field(default_factory=list)

    def commit(self, message: str, files: dict[str, tuple[bytes, bool]]) -> str:
        sha = hashlib.sha1(f"{len(self.commits)}{message}{sorted(files)}".encode()).hexdigest()
        self.commits.append((sha, message, files))
        return sha

    @property
    def head(self) -> tuple[str, str, dict[str, tuple[bytes, bool]]]:
        return self.commits[-1]

    def contents(self) -> dict[str, bytes]:
        return {name: content for name, (content, _) in self.head[2].items()}


@dataclass
class Hub:
    """The state of the server; tests look at it and change it."""

    address: str = ""
    users: dict[str, tuple[str, bool]] = field(
        default_factory=lambda: {TOKEN: ("me", True), READER: ("reader", False)}
    )
    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)

    def add(self, name: str, files: dict[str, bytes], *, private: bool = False) -> Repository:
        """Puts a repository there with one commit."""
        repository = self.repositories[name] = Repository(private)
        repository.commit("initial commit", {".gitattributes": (b"", False)})
        if files:
            kept = {path: (content, path.endswith(BINARY)) for path, content in files.items()}
            repository.commit("files", kept)
        return repository


class Refused(Exception):
    """An answer that is an error: status, message, and the Hub's name for it."""

    def __init__(self, status: int, message: str, code: str = "", **extra: Any) -> None:
        super().__init__(message)
        self.status, self.code, self.extra = status, code, extra


@contextmanager
def hub_server() -> Iterator[Hub]:
    """Runs a Hub on a free port of 127.0.0.1."""
    hub = Hub()

    class Handler(_Handler):
        state = hub

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        hub.address = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    state: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_POST = do_PUT = do_GET

    def log_message(self, *_: Any) -> None:
        """Keeps quiet."""

    def _answer(self) -> None:
        hub, path = self.state, unquote(urlsplit(self.path).path)
        hub.requests.append((self.command, path))
        fault = next(
            (one for one in hub.faults if one.method == self.command and re.search(one.path, path)), None
        )
        if fault is not None:
            fault.times -= 1
            if not fault.times:
                hub.faults.remove(fault)
            if fault.answer == "cut":
                self.rfile.read(int(self.headers.get("Content-Length", 0)) // 2)
                self.close_connection = True
                return
        body = self._body()
        if fault is not None and isinstance(fault.answer, int):
            return self._send(fault.answer, fault.body.encode(), fault.headers)
        if fault is not None:
            body = body[::-1] + b"!"
        try:
            for pattern, act in _ROUTES:
                if found := re.fullmatch(pattern, f"{self.command} {path}"):
                    answer = act(self, body, *found.groups())
                    if isinstance(answer, tuple):
                        return self._send(200, *answer)
                    return self._send(200, json.dumps(answer).encode())
            raise Refused(404, f"no such address: {path}")
        except Refused as refused:
            headers = {"X-Error-Message": str(refused)}
            if refused.code:
                headers["X-Error-Code"] = refused.code
            self._send(refused.status, json.dumps({"error": str(refused), **refused.extra}).encode(), headers)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _send(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _user(self, writes: bool = False) -> str | None:
        given = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if given and given not in self.state.users:
            raise Refused(401, "Invalid credentials in Authorization header")
        user, may_write = self.state.users.get(given, (None, False))
        if writes and not may_write:
            raise Refused(403 if user else 401, "this token has no right to write")
        return user

    def _repository(self, name: str, writes: bool = False) -> Repository:
        user, found = self._user(), self.state.repositories.get(name)
        if found is None or (found.private and user != name.split("/")[0]):
            raise Refused(404 if user else 401, "Repository not found", "RepoNotFound")
        if writes and user != name.split("/")[0]:
            raise Refused(403, f"{user} has no right to write to {name}")
        if writes:
            self._user(writes=True)
        return found

    def _create(self, body: bytes) -> Any:
        user, asked = self._user(writes=True), json.loads(body)
        owner = asked["organization"] or user
        if owner != user:
            raise Refused(403, f"{user} has no right to make repositories for {owner}")
        name = f"{owner}/{asked['name']}"
        url = f"{self.state.address}/{name}"
        if name in self.state.repositories:
            raise Refused(409, "You already created this model repo", url=url)
        self.state.add(name, {}, private=asked.get("visibility") == "private")
        return {"url": url}

    def _validate(self, body: bytes) -> Any:
        content = json.loads(body)["content"]
        try:
            head = yaml.safe_load(re.split(r"^---$", content, flags=re.MULTILINE)[1])
            assert isinstance(head["base_model"], str) and isinstance(head["tags"], list)
        except (yaml.YAMLError, LookupError, AssertionError, TypeError) as error:
            raise Refused(400, "bad card", errors=[{"message": repr(error)}]) from error
        return {"errors": [], "warnings": []}

    def _preupload(self, body: bytes, name: str, _: str) -> Any:
        files = self._repository(name, writes=True).head[2]

        def about(one: dict[str, Any]) -> dict[str, Any]:
            lfs = one["path"].endswith(BINARY) and one["size"] > 200
            found = {"path": one["path"], "uploadMode": "lfs" if lfs else "regular", "shouldIgnore": False}
            if one["path"] in files:
                found["oid"] = _oid(*files[one["path"]])
            return found

        return {"files": [about(one) for one in json.loads(body)["files"]]}

    def _batch(self, body: bytes, name: str) -> Any:
        self._repository(name, writes=True)
        objects = json.loads(body)["objects"]
        address = self.state.address
        for one in objects:
            if one["oid"] not in self.state.objects:
                one["actions"] = {
                    "upload": {"href": f"{address}/objects/{one['oid']}?signature=secret"},
                    "verify": {"href": f"{address}/verify"},
                }
        return {"transfer": "basic", "objects": objects}

    def _upload(self, body: bytes, oid: str) -> Any:
        self.state.objects[oid] = body
        return {}

    def _verify(self, body: bytes) -> Any:
        self._user(writes=True)
        oid, size = (json.loads(body)[key] for key in ("oid", "size"))
        stored = self.state.objects.get(oid, b"")
        if len(stored) != size or hashlib.sha256(stored).hexdigest() != oid:
            self.state.objects.pop(oid, None)
            raise Refused(422, "the object is not what its hash says")
        return {}

    def _commit(self, body: bytes, name: str, _: str) -> Any:
        repository = self._repository(name, writes=True)
        files, message = dict(repository.head[2]), ""
        for line in body.splitlines():
            item = json.loads(line)
            kind, value = item["key"], item["value"]
            if kind == "header":
                message = value["summary"]
                if value.get("parentCommit") not in (None, repository.head[0]):
                    raise Refused(412, "A commit has happened since")
            elif kind == "file":
                files[value["path"]] = base64.b64decode(value["content"]), False
            elif kind == "lfsFile":
                if value["oid"] not in self.state.objects:
                    raise Refused(400, f"{value['path']} was never uploaded")
                files[value["path"]] = self.state.objects[value["oid"]], True
            else:
                assert kind == "deletedFile", kind
                del files[value["path"]]
        sha = repository.commit(message, files)
        return {"commitUrl": f"{self.state.address}/{name}/commit/{sha}", "commitOid": sha}

    def _info(self, body: bytes, name: str, revision: str | None = None) -> Any:
        repository = self._repository(name)
        sha, _, files = self._at(repository, revision or "main")
        found: dict[str, Any] = {"id": name, "sha": sha, "private": repository.private}
        found["siblings"] = [{"rfilename": path} for path in files]
        card = files.get("README.md", (b"", False))[0].decode()
        if card.startswith("---"):
            found["cardData"] = yaml.safe_load(card.split("---")[1])
        return found

    def _tree(self, body: bytes, name: str, revision: str, folder: str | None) -> Any:
        _, _, files = self._at(self._repository(name), revision)
        if folder is not None:  # all files here are at the top
            raise Refused(404, f"{folder} does not exist", "EntryNotFound")
        return [
            {"type": "file", "path": path, "size": len(content), "oid": _oid(content, lfs)}
            for path, (content, lfs) in files.items()
        ]

    def _resolve(self, body: bytes, name: str, revision: str, path: str) -> Any:
        sha, _, files = self._at(self._repository(name), revision)
        if path not in files:
            raise Refused(404, "Entry not found", "EntryNotFound")
        return files[path][0], {"X-Repo-Commit": sha, "ETag": f'"{_oid(*files[path])}"'}

    def _at(self, repository: Repository, revision: str) -> tuple[str, str, dict[str, tuple[bytes, bool]]]:
        found = [one for one in repository.commits if revision in ("main", one[0])]
        if not found:
            raise Refused(404, "Revision not found", "RevisionNotFound")
        return found[-1]


_ROUTES: list[tuple[str, Any]] = [
    (r"POST /api/repos/create", _Handler._create),
    (r"POST /api/validate-yaml", _Handler._validate),
    (r"POST /api/models/(.+)/preupload/(.+)", _Handler._preupload),
    (r"POST /(.+)\.git/info/lfs/objects/batch", _Handler._batch),
    (r"PUT /objects/(\w+)", _Handler._upload),
    (r"POST /verify", _Handler._verify),
    (r"POST /api/models/(.+)/commit/(.+)", _Handler._commit),
    (r"GET /api/models/(.+)/revision/(.+)", _Handler._info),
    (r"GET /api/models/(.+)/tree/(\w+)(?:/(.+))?", _Handler._tree),
    (r"GET /api/models/(.+)", _Handler._info),
    (r"(?:GET|HEAD) /(.+)/resolve/(\w+)/(.+)", _Handler._resolve),
]


def _oid(content: bytes, lfs: bool) -> str:
    """Returns what names a content: of an LFS file its SHA-256, of another git's own hash."""
    if lfs:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
