"""A stub of Google Cloud Storage's XML interface, with the preconditions of generations.

It is a simulation: the published emulators ignore these preconditions. What it answers is taken from
https://cloud.google.com/storage/docs/xml-api/reference-headers and from what obstore sends.
"""

import hashlib
import threading
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import time
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


@dataclass(frozen=True)
class StoredBlob:
    """An object with its generation."""

    content: bytes
    generation: int
    written: float = field(default_factory=time)

    @property
    def headers(self) -> dict[str, str]:
        """What an answer says about it."""
        return {
            "ETag": self.etag,
            "x-goog-generation": str(self.generation),
            "Last-Modified": formatdate(self.written, usegmt=True),
        }

    @property
    def etag(self) -> str:
        """Equal for equal contents, as Google's."""
        return f'"{hashlib.md5(self.content, usedforsecurity=False).hexdigest()}"'


class GoogleStub(ThreadingHTTPServer):
    """Buckets that exist, and the objects in them; by (bucket, key)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.buckets: set[str] = set()
        self.objects: dict[tuple[str, str], StoredBlob] = {}
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.generation = 1_000
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_port}"

    def store(self, at: tuple[str, str], content: bytes) -> StoredBlob:
        """Write an object; call it with the lock."""
        self.generation += 1
        self.objects[at] = StoredBlob(content, self.generation)
        return self.objects[at]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer is sent in two pieces
    server: GoogleStub

    def log_message(self, *_: object) -> None:
        """Be silent."""

    def _answer(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"", size: int = -1) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body) if size < 0 else size))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, {}, f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode())

    def _at(self) -> tuple[tuple[str, str], dict[str, list[str]]]:
        parts = urlsplit(self.path)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        return (bucket, key), parse_qs(parts.query, keep_blank_values=True)

    def _serve(self, method: str) -> None:
        at, query = self._at()
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.server.lock:
            if at[0] not in self.server.buckets:
                return self._refuse(404, "NoSuchBucket")
            if method == "GET" and not at[1]:
                return self._list(at[0], query.get("prefix", [""])[0], query.get("start-after", [""])[0])
            if method in ("GET", "HEAD"):
                return self._get(at, method)
            if method == "DELETE":
                return self._delete(at, query)
            if "uploads" in query or "uploadId" in query:
                return self._upload(at, query, body)
            return self._put(at, body)

    def do_GET(self) -> None:
        """Read or list."""
        self._serve("GET")

    def do_HEAD(self) -> None:
        """Look."""
        self._serve("HEAD")

    def do_PUT(self) -> None:
        """Write."""
        self._serve("PUT")

    def do_POST(self) -> None:
        """Begin or complete an upload in parts."""
        self._serve("POST")

    def do_DELETE(self) -> None:
        """Delete."""
        self._serve("DELETE")

    def _get(self, at: tuple[str, str], method: str) -> None:
        blob = self.server.objects.get(at)
        if blob is None:
            return self._refuse(404, "NoSuchKey")
        if self.headers.get("If-Match", blob.etag) != blob.etag:
            return self._refuse(412, "PreconditionFailed")
        if method == "HEAD":
            return self._answer(200, blob.headers, size=len(blob.content))
        if "Range" not in self.headers:
            return self._answer(200, blob.headers, blob.content)
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        part = blob.content[int(first) : int(last or len(blob.content)) + 1]
        place = f"bytes {first}-{int(first) + len(part) - 1}/{len(blob.content)}"
        return self._answer(206, blob.headers | {"Content-Range": place}, part)

    def _put(self, at: tuple[str, str], body: bytes) -> None:
        wanted = self.headers.get("x-goog-if-generation-match")
        present = self.server.objects.get(at)
        if wanted is not None and int(wanted) != (present.generation if present else 0):
            return self._refuse(412, "PreconditionFailed")
        return self._answer(200, self.server.store(at, body).headers)

    def _delete(self, at: tuple[str, str], query: dict[str, list[str]]) -> None:
        if "uploadId" in query:
            self.server.uploads.pop(query["uploadId"][0], None)
        elif self.server.objects.pop(at, None) is None:
            return self._refuse(404, "NoSuchKey")
        return self._answer(204)

    def _upload(self, at: tuple[str, str], query: dict[str, list[str]], body: bytes) -> None:
        if "uploads" in query:
            name = f"upload-{len(self.server.uploads)}"
            self.server.uploads[name] = {}
            begun = f"<Bucket>{at[0]}</Bucket><Key>{escape(at[1])}</Key><UploadId>{name}</UploadId>"
            answer = f"<InitiateMultipartUploadResult>{begun}</InitiateMultipartUploadResult>"
            return self._answer(200, {}, answer.encode())
        parts = self.server.uploads.get(query["uploadId"][0])
        if parts is None:
            return self._refuse(404, "NoSuchUpload")
        if "partNumber" in query:
            parts[int(query["partNumber"][0])] = body
            return self._answer(200, {"ETag": f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'})
        del self.server.uploads[query["uploadId"][0]]
        blob = self.server.store(at, b"".join(parts[number] for number in sorted(parts)))
        answer = f"<CompleteMultipartUploadResult><ETag>{escape(blob.etag)}</ETag></CompleteMultipartUploadResult>"
        return self._answer(200, blob.headers, answer.encode())

    def _list(self, bucket: str, prefix: str, after: str) -> None:
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Generation>{blob.generation}</Generation>"
            f"<LastModified>{_iso(blob.written)}</LastModified><ETag>{escape(blob.etag)}</ETag>"
            f"<Size>{len(blob.content)}</Size></Contents>"
            for (of_bucket, key), blob in sorted(self.server.objects.items())
            if of_bucket == bucket and key.startswith(prefix) and key > after
        )
        answer = f"<ListBucketResult><Name>{bucket}</Name><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
        return self._answer(200, {}, answer.encode())


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
