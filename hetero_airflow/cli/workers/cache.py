"""``airflow hetero cache``: what the cache folder of this host holds, and what stays there."""

import shutil
from argparse import Namespace
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from rich.console import RenderableType

from hetero_airflow.checkpoints.configured import CheckpointOptions, data_settings
from hetero_airflow.cli.action import action
from hetero_airflow.cli.output import age, cell, show, show_json, table
from hetero_airflow.errors import DataError
from hetero_airflow.model.data_url import DataUrl
from hetero_airflow.runtime.data.folder import CacheFolder, Entry, Unusable
from hetero_airflow.units import format_bytes


@action
def cache(args: Namespace) -> None:
    """List, remove or keep what is cached."""
    settings = data_settings(CheckpointOptions(""), {})
    root = settings.root
    url = DataUrl.of(args.url).url.rstrip("/") if args.url else None
    if url is None and args.what in ("pin", "unpin"):
        raise DataError(f"`cache {args.what}`", found="no URL", remedy="Name an object or a folder: s3://bucket/folder")
    try:
        folder = CacheFolder(root, settings.size_bytes)
    except Unusable as error:
        remedy = "Run it as the user of the tasks, or set [hetero] data_cache"
        raise DataError(f"the folder {root}", found=str(error), remedy=remedy) from error
    try:
        show_json(listed_json(folder, url)) if args.json and args.what == "ls" else show(
            *_ACTIONS[args.what](folder, url)
        )
    finally:
        folder.close()


def listed_json(folder: CacheFolder, url: str | None) -> dict[str, Any]:
    """What is cached below a URL, and how much the folder may hold."""
    entries, used, pinned = _below(folder, url), folder.used(), folder.pinned()
    held = sum(entry.size_bytes for entry in folder.entries())
    return {
        "folder": str(folder.root),
        "limit_bytes": folder.limit(held, shutil.disk_usage(folder.root).free),
        "held_bytes": held,
        "pinned": sorted(pinned),
        "entries": [
            {
                "url": entry.url,
                "size_bytes": entry.size_bytes,
                "last_used": datetime.fromtimestamp(entry.used, UTC).isoformat(timespec="seconds"),
                "is_in_use": entry.name in used,
                "is_pinned": entry.is_below(pinned),
            }
            for entry in sorted(entries, key=lambda entry: -entry.used)
        ],
    }


def _listed(folder: CacheFolder, url: str | None) -> Iterator[RenderableType]:
    found = listed_json(folder, url)
    now = datetime.now(UTC)
    rows = [
        (
            cell(row["url"] or "unknown"),
            cell(format_bytes(row["size_bytes"])),
            cell(f"{age(datetime.fromisoformat(row['last_used']), now)} ago"),
            cell(
                ", ".join(text for text, is_so in (("in use", row["is_in_use"]), ("pinned", row["is_pinned"])) if is_so)
            ),
        )
        for row in found["entries"]
    ]
    if rows:
        yield table(("URL", "SIZE", "LAST USED", "STAYS"), rows, whole=0)
    held, limit = format_bytes(found["held_bytes"]), format_bytes(found["limit_bytes"])
    yield cell(f"{found['folder']} holds {held} and may hold {limit}.")
    for pin in found["pinned"]:
        yield cell(f"Pinned: {pin}")


def _pruned(folder: CacheFolder, url: str | None) -> Iterator[RenderableType]:
    pinned = folder.pinned()
    entries = [entry for entry in _below(folder, url) if not entry.is_below(pinned)]
    removed = folder.evict(entries)
    left = sum(entry.size_bytes for entry in _below(folder, url))
    rest = f" {format_bytes(left)} stays: running processes use it, or it is pinned." if left else ""
    yield cell(f"Removed {format_bytes(removed)}.{rest}")


def _pin(folder: CacheFolder, url: str | None) -> Iterator[RenderableType]:
    folder.pin(str(url))
    held = sum(entry.size_bytes for entry in _below(folder, url))
    yield cell(f"{url} stays until `airflow hetero cache unpin {url}`. {format_bytes(held)} of it is here now.")


def _unpin(folder: CacheFolder, url: str | None) -> Iterator[RenderableType]:
    if not folder.unpin(str(url)):
        pins = ", ".join(sorted(folder.pinned())) or "nothing"
        raise DataError(f"to unpin {url}", found=f"that it is not pinned; pinned is {pins}", remedy="Name one of these")
    yield cell(f"{url} goes when it was not used for the longest time.")


_ACTIONS = {"ls": _listed, "prune": _pruned, "pin": _pin, "unpin": _unpin}


def _below(folder: CacheFolder, url: str | None) -> list[Entry]:
    return [entry for entry in folder.entries() if url is None or entry.is_below([url])]
