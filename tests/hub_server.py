"""A Hub on 127.0.0.1 for the real `huggingface_hub` client: repositories in memory, and failures on demand.

It speaks what the client asks: creating repositories, commits, files by revision, and large files by Git LFS or, where
`hf_xet` is installed, by Xet (the formats are documented in the Hub's description of the protocol). A commit happens whole
or not at all, and a large file exists only once all of it is there and has the right hash.

    with HubServer() as hub:
        ...  # a process with HF_ENDPOINT=hub.url and HF_TOKEN=HubServer.TOKEN
        hub.fail("PUT", "/lfs/", cut=True)
"""

import base64
import hashlib
import json
import re
import struct
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from card_rules import check_card

LARGE = (".safetensors", ".bin", ".png")


@dataclass
class Commit:
    files: dict  # path to content
    message: str


@dataclass
class Repository:
    private: bool
    branches: dict  # name to id
    commits: dict = field(default_factory=dict)  # id to Commit

    def find(self, revision):
        """Id and commit of a branch or id; None where there is none."""
        name = self.branches.get(revision, revision)
        return (name, self.commits[name]) if name in self.commits else None

    def add(self, branch, files, message):
        name = hashlib.sha1(f"{time.time_ns()}{message}{branch}".encode()).hexdigest()
        self.commits[name] = Commit(files, message)
        self.branches[branch] = name
        return name


@dataclass
class Fault:
    method: str
    path: str
    status: int | None
    headers: dict
    times: int
    cut: bool


class HubServer:
    """Runs in a thread while used in a `with` statement.

    Attributes:
        url: for HF_ENDPOINT.
        repositories: by id.
        objects: whole large files by their sha256.
        requests: (method, path, status) of all requests; status 0 where the connection was cut.
    """

    TOKEN = "hf_of_the_test"

    def __init__(self):
        self.repositories, self.objects, self.requests = {}, {}, []
        self.xorbs, self._faults, self.lock = {}, [], threading.RLock()

    def __enter__(self):
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error):
        self._server.shutdown()
        self._server.server_close()

    def fail(self, method, path, status=None, *, times=1, cut=False, **headers):
        """Answer the next requests, whose path holds `path`, with a status, or break the connection off half-way."""
        given = {name.replace("_", "-"): str(value) for name, value in headers.items()}
        self._faults.append(Fault(method, path, status, given, times, cut))

    def heal(self):
        self._faults.clear()

    def fault(self, method, path):
        with self.lock:
            for fault in self._faults:
                if fault.times and fault.method == method and fault.path in path:
                    fault.times -= 1
                    return fault
        return None

    def files(self, repo_id, revision="main"):
        """Path to content of what is there."""
        return dict(self.repositories[repo_id].find(revision)[1].files)

    def put(self, repo_id, files, private=False):
        """Make a repository without a client."""
        self.repositories[repo_id] = Repository(private, {})
        self.repositories[repo_id].add("main", files, "initial commit")

    def store(self, content):
        self.objects[hashlib.sha256(content).hexdigest()] = content


class _Answer(Exception):
    def __init__(self, status, body=None, code=None, **headers):
        self.status, self.body, self.headers = status, {} if body is None else body, headers
        if code:
            self.headers["X-Error-Code"] = code


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    protocol_version = "HTTP/1.1"

    ROUTES = (
        ("POST", r"/api/repos/create", "create"),
        ("POST", r"/api/validate-yaml", "validate_card"),
        ("GET", r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", "info"),
        ("GET", r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", "tree"),
        ("GET", r"/api/models/([^/]+/[^/]+)/xet-write-token/([^/]+)", "xet_token"),
        ("POST", r"/api/models/([^/]+/[^/]+)/branch/([^/]+)", "branch"),
        ("POST", r"/api/models/([^/]+/[^/]+)/preupload/([^/]+)", "preupload"),
        ("POST", r"/api/models/([^/]+/[^/]+)/commit/([^/]+)", "commit"),
        ("POST", r"/([^/]+/[^/]+)\.git/info/lfs/objects/batch", "lfs_batch"),
        ("PUT", r"/lfs/([0-9a-f]{64})", "lfs_upload"),
        ("POST", r"/v1/xorbs?/default/([0-9a-f]{64})", "xorb"),
        ("POST", r"(?:/v1)?/shards?", "shard"),
        ("GET", r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", "resolve"),
        ("HEAD", r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", "resolve"),
    )

    def handle_one_request(self):
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def log_message(self, *arguments):
        pass

    def do(self):
        url = urlsplit(self.path)
        self.query, path = parse_qs(url.query), url.path
        length = int(self.headers.get("Content-Length") or 0)
        fault = self.hub.fault(self.command, path)
        if fault and fault.cut and self.command in ("POST", "PUT"):
            self.rfile.read(length // 2)
            return self.cut(path)
        self.body = (
            self.rfile.read(length) if "chunked" not in self.headers.get("Transfer-Encoding", "") else self.chunks()
        )
        try:
            if fault and fault.status:
                raise _Answer(fault.status, {"error": "as the test wants it"}, **fault.headers)
            for method, pattern, name in self.ROUTES:
                found = re.fullmatch(pattern, path) if method == self.command else None
                if found:
                    with self.hub.lock:
                        answer = getattr(self, name)(*(part and unquote(part) for part in found.groups()))
                    break
            else:
                raise _Answer(404, {"error": f"no such address: {self.command} {path}"})
        except _Answer as error:
            answer = error
        content = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if fault and fault.cut:
            self.wfile.write(content[: len(content) // 2])
            return self.cut(path)
        if self.command != "HEAD":
            self.wfile.write(content)
        self.hub.requests.append((self.command, path, answer.status))

    do_GET = do_HEAD = do_POST = do_PUT = do  # noqa: N815 - the names of http.server

    def cut(self, path):
        self.hub.requests.append((self.command, path, 0))
        self.wfile.flush()
        self.close_connection = True
        self.connection.close()

    def chunks(self):
        body = b""
        while size := int(self.rfile.readline().strip(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    # Who may do what

    def writer(self):
        if self.headers.get("Authorization") != f"Bearer {self.hub.TOKEN}":
            raise _Answer(401, {"error": "Invalid credentials in Authorization header"})

    def repository(self, repo_id):
        found = self.hub.repositories.get(repo_id)
        known = self.headers.get("Authorization") == f"Bearer {self.hub.TOKEN}"
        if found is None or (found.private and not known):
            # the Hub does not tell strangers whether there is a private repository of that name
            raise _Answer(404 if known else 401, {"error": "Repository not found"}, "RepoNotFound")
        return found

    def revision(self, repo_id, revision):
        repository = self.repository(repo_id)
        found = repository.find(revision or "main")
        if found is None:
            raise _Answer(404, {"error": f"Invalid rev id: {revision}"}, "RevisionNotFound")
        return repository, *found

    # Repositories and commits

    def create(self):
        self.writer()
        wanted = json.loads(self.body)
        repo_id = f"{wanted.get('organization') or 'me'}/{wanted['name']}"
        url = {"url": f"{self.hub.url}/{repo_id}"}
        if repo_id in self.hub.repositories:
            raise _Answer(409, {"error": "You already created this model repo", **url})
        private = wanted.get("visibility") == "private" or bool(wanted.get("private"))
        self.hub.put(repo_id, {".gitattributes": b"*.safetensors filter=lfs\n"}, private)
        return _Answer(200, url)

    def validate_card(self):
        wanted = json.loads(self.body)
        if wanted["repoType"] != "model":
            raise _Answer(400, {"error": "this server has only models"})
        errors, warnings = ([{"message": m} for m in messages] for messages in check_card(wanted["content"]))
        return _Answer(400 if errors else 200, {"errors": errors, "warnings": warnings})

    def info(self, repo_id, revision=None):
        repository, name, commit = self.revision(repo_id, revision)
        siblings = [{"rfilename": path} for path in commit.files]
        about = {"id": repo_id, "modelId": repo_id, "sha": name, "private": repository.private, "tags": []}
        return _Answer(200, {**about, "siblings": siblings, "downloads": 0, "likes": 0})

    def tree(self, repo_id, revision):
        _, _, commit = self.revision(repo_id, revision)
        return _Answer(200, [{"type": "file", "path": p, **self.described(p, c)} for p, c in commit.files.items()])

    def described(self, path, content):
        if not path.endswith(LARGE):
            return {"size": len(content), "oid": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()}
        name = hashlib.sha256(content).hexdigest()
        return {"size": len(content), "oid": name, "lfs": {"oid": name, "size": len(content), "pointerSize": 134}}

    def branch(self, repo_id, branch):
        self.writer()
        start = json.loads(self.body or b"{}").get("startingPoint")
        repository, name, _ = self.revision(repo_id, start)
        if branch in repository.branches:
            raise _Answer(409, {"error": "Reference already exists"})
        repository.branches[branch] = name
        return _Answer(200)

    def preupload(self, repo_id, revision):
        self.writer()
        _, _, commit = self.revision(repo_id, revision)
        files = []
        for file in json.loads(self.body)["files"]:
            old = commit.files.get(file["path"])
            mode = "lfs" if file["path"].endswith(LARGE) else "regular"
            oid = None if old is None else self.described(file["path"], old)["oid"]
            files.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return _Answer(200, {"files": files})

    def commit(self, repo_id, revision):
        self.writer()
        repository, _, before = self.revision(repo_id, revision)
        files, message = dict(before.files), ""
        for line in self.body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                message = value["summary"]
            elif entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                if value["oid"] not in self.hub.objects:
                    raise _Answer(400, {"error": f"{value['path']} points to a file that was not uploaded"})
                files[value["path"]] = self.hub.objects[value["oid"]]
            elif entry["key"] == "deletedFile":
                del files[value["path"]]
            else:
                raise _Answer(400, {"error": f"unknown {entry['key']}"})
        name = repository.add(revision, files, message)
        url = f"{self.hub.url}/{repo_id}/commit/{name}"
        return _Answer(200, {"commitUrl": url, "commitOid": name, "success": True})

    def resolve(self, repo_id, revision, path):
        _, name, commit = self.revision(repo_id, revision)
        content = commit.files.get(path)
        if content is None:
            raise _Answer(404, {"error": "Entry not found"}, "EntryNotFound", X_Repo_Commit=name)
        etag = self.described(path, content)["oid"]
        headers = {"X_Repo_Commit": name, "ETag": f'"{etag}"'}
        if self.command == "HEAD":
            return _Answer(200, b"", **headers, X_Linked_Size=str(len(content)))
        return _Answer(200, content, **headers)

    # Large files by Git LFS

    def lfs_batch(self, repo_id):
        self.writer()
        self.repository(repo_id)
        objects = []
        for wanted in json.loads(self.body)["objects"]:
            upload = {"actions": {"upload": {"href": f"{self.hub.url}/lfs/{wanted['oid']}"}}}
            objects.append({**wanted, **({} if wanted["oid"] in self.hub.objects else upload)})
        return _Answer(200, {"transfer": "basic", "objects": objects})

    def lfs_upload(self, oid):
        if hashlib.sha256(self.body).hexdigest() != oid:
            raise _Answer(400, {"error": "the content has another hash"})
        self.hub.store(self.body)
        return _Answer(200)

    # Large files by Xet

    def xet_token(self, repo_id, revision):
        self.writer()
        self.revision(repo_id, revision)
        return _Answer(200, {"accessToken": "xet", "exp": int(time.time()) + 3600, "casUrl": self.hub.url})

    def xorb(self, name):
        self.hub.xorbs[name] = _chunks_of(self.body)
        return _Answer(200, {"was_inserted": True})

    def shard(self):
        for sha256, pieces in _files_of(self.body):
            content = b"".join(b"".join(self.hub.xorbs[xorb][first:end]) for xorb, first, end in pieces)
            if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
                raise _Answer(400, {"error": "the content has another hash"})
            self.hub.store(content)
        return _Answer(200, {"result": 1})


def _hex(name):
    """A hash of Xet in words of 8 bytes, lowest byte first, as it stands in addresses."""
    return "".join(f"{word:016x}" for word in struct.unpack("<4Q", name))


def _chunks_of(xorb):
    """The contents of a xorb: pieces of files, each behind a header of 8 bytes, plain, LZ4 or LZ4 of grouped bytes."""
    chunks, place = [], 0
    while place < len(xorb) and xorb[place : place + 7] != b"XETBLOB":
        packed, kind = int.from_bytes(xorb[place + 1 : place + 4], "little"), xorb[place + 4]
        size = int.from_bytes(xorb[place + 5 : place + 8], "little")
        data = xorb[place + 8 : place + 8 + packed]
        if kind:
            data = _unpacked(data)
        if kind == 2:
            data = _ungrouped(data)
        assert len(data) == size
        chunks.append(data)
        place += 8 + packed
    return chunks


def _ungrouped(data):
    """Every fourth byte stood together."""
    content, start = bytearray(len(data)), 0
    for place in range(4):
        count = len(content[place::4])
        content[place::4] = data[start : start + count]
        start += count
    return bytes(content)


def _unpacked(frame):
    """The content of an LZ4 frame."""
    flags, place = frame[4], 6
    place += 8 * bool(flags & 8) + 4 * (flags & 1) + 1
    content = bytearray()
    while size := int.from_bytes(frame[place : place + 4], "little"):
        plain, size = size >> 31, size & 0x7FFFFFFF
        block = frame[place + 4 : place + 4 + size]
        content += block if plain else b""
        if not plain:
            _unpack_block(block, content)
        place += 4 + size + 4 * bool(flags & 16)
    return bytes(content)


def _unpack_block(block, content):
    place = 0

    def length(start):
        nonlocal place
        total = start
        while start == 15:
            total += block[place]
            place += 1
            if block[place - 1] < 255:
                break
        return total

    while place < len(block):
        token = block[place]
        place += 1
        literals = length(token >> 4)
        content += block[place : place + literals]
        place += literals
        if place >= len(block):
            break
        offset = int.from_bytes(block[place : place + 2], "little")
        place += 2
        for _ in range(length(token & 15) + 4):
            content.append(content[-offset])


def _files_of(shard):
    """The files of a shard: the sha256 of each, where it is said, and the ranges of chunks in xorbs that it is made of."""
    place, files = 48, []
    while shard[place : place + 32] != b"\xff" * 32:
        flags, count = struct.unpack_from("<2I", shard, place + 32)
        place += 48
        pieces = []
        for _ in range(count):
            first, end = struct.unpack_from("<2I", shard, place + 40)
            pieces.append((_hex(shard[place : place + 32]), first, end))
            place += 48
        place += 48 * count * (flags >> 31)
        sha256 = None
        if flags >> 30 & 1:
            sha256 = _hex(shard[place : place + 32])
            place += 48
        files.append((sha256, pieces))
    return files
