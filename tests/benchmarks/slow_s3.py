"""A server of S3's requests for reading, with a delay before each answer: `python slow_s3.py DELAY_MS COUNT SIZE`.

It prints its port. The bucket `lake` has COUNT objects of SIZE bytes, in the folder `data`, and in the folder `shards`
as many rows of that size in .npy objects of `ROWS`. Ranges, `If-Match` and listings are as in S3; no signature is
checked. It is a process of its own, and waits without using a core.
"""

import asyncio
import hashlib
import io
import sys
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np

DATE = "Mon, 30 Nov 2026 00:00:00 GMT"
ROWS = 100


def header(rows: int, size_bytes: int) -> bytes:
    """How a .npy file of these rows begins."""
    file = io.BytesIO()
    description = {"descr": "|u1", "fortran_order": False, "shape": (rows, size_bytes)}
    np.lib.format.write_array_header_1_0(file, description)
    return file.getvalue()


class SlowS3:
    """The objects, and how they are answered."""

    def __init__(self, delay_s: float, count: int, size_bytes: int) -> None:
        self._delay_s = delay_s
        head = header(ROWS, size_bytes)
        names = {f"data/{number:06}": (b"", size_bytes) for number in range(count)}
        names |= {f"shards/{number:04}.npy": (head, ROWS * size_bytes) for number in range(count // ROWS)}
        self._objects = {key: (hashlib.sha256(key.encode()).digest(), *rest) for key, rest in names.items()}
        """Key → what its content repeats, how it begins, and how many bytes follow."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection."""
        try:
            while line := await reader.readline():
                method, target, _ = line.decode().split(" ", 2)
                headers = {}
                while (header := await reader.readline()) not in (b"\r\n", b""):
                    name, _, value = header.decode().partition(":")
                    headers[name.lower()] = value.strip()
                await asyncio.sleep(self._delay_s)
                self._answer(writer, method, target, headers)
                await writer.drain()
        except (ConnectionError, ValueError):
            pass
        finally:
            writer.close()

    def _answer(self, writer: asyncio.StreamWriter, method: str, target: str, headers: dict[str, str]) -> None:
        parts = urlsplit(target)
        key = unquote(parts.path).removeprefix("/lake").lstrip("/")
        if not key:
            return self._send(writer, 200, self._listing(parse_qs(parts.query, keep_blank_values=True)))
        if key not in self._objects:
            return self._send(writer, 404, b"<Error><Code>NoSuchKey</Code></Error>")
        seed, head, size = self._objects[key]
        etag = f'"{seed.hex()[:32]}"'
        if headers.get("if-match", etag) != etag:
            return self._send(writer, 412, b"<Error><Code>PreconditionFailed</Code></Error>")
        content = head + (seed * (size // len(seed) + 1))[:size]
        status, place, total = 200, "", len(content)
        if "range" in headers:
            first, _, last = headers["range"].removeprefix("bytes=").partition("-")
            content = content[int(first) : int(last or total) + 1]
            status, place = 206, f"Content-Range: bytes {first}-{int(first) + len(content) - 1}/{total}\r\n"
        return self._send(writer, status, content, f"ETag: {etag}\r\n{place}", has_body=method != "HEAD")

    def _listing(self, query: dict[str, list[str]]) -> bytes:
        after = query.get("continuation-token", query.get("start-after", [""]))[0]
        prefix = query.get("prefix", [""])[0]
        keys = [key for key in self._objects if key.startswith(prefix) and key > after]
        page = keys[:1000]
        rows = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2026-11-30T00:00:00Z</LastModified>"
            f'<ETag>"{seed.hex()[:32]}"</ETag><Size>{len(head) + size}</Size></Contents>'
            for key, (seed, head, size) in ((key, self._objects[key]) for key in page)
        )
        more = f"<NextContinuationToken>{page[-1]}</NextContinuationToken>" if len(keys) > len(page) else ""
        truncated = str(bool(more)).lower()
        return f"<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{more}{rows}</ListBucketResult>".encode()

    @staticmethod
    def _send(
        writer: asyncio.StreamWriter, status: int, body: bytes, headers: str = "", *, has_body: bool = True
    ) -> None:
        head = f"HTTP/1.1 {status} OK\r\nContent-Length: {len(body)}\r\nLast-Modified: {DATE}\r\n{headers}\r\n"
        writer.write(head.encode())
        if has_body:
            writer.write(body)


async def main() -> None:
    """Serve until the process is ended."""
    delay_ms, count, size_bytes = map(int, sys.argv[1:])
    s3 = SlowS3(delay_ms / 1000, count, size_bytes)
    server = await asyncio.start_server(s3.serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
