"""Reads whether the provider takes this machine back: AWS, Google Cloud and Azure by their metadata servers, or a file.

The provider is a setting. To try all of them would cost their time limits on each machine that is not theirs. A thread
of its own looks for notices, so that a metadata server that is slow or silent delays no heartbeat.
"""

import logging
import threading
import time
from collections.abc import Mapping
from json import JSONDecodeError
from pathlib import Path
from typing import Any, ClassVar, Protocol

import httpx

from hetero_airflow.errors import HeteroError, SettingsError, shorten
from hetero_airflow.validation import did_you_mean

log = logging.getLogger(__name__)

METADATA_URL = "http://169.254.169.254"
"""The metadata server of all three, at the link-local address: no name has to be resolved."""

TIMEOUT_S = 2.0
"""For each step of an exchange: to connect, to send, and for each part of the answer."""

LOOK_EVERY_S = 2.0
"""AWS suggests 5 s of its 120 s, and Azure 1 s. Google Cloud gives 30 s in all."""

MAX_BYTES = 1 << 16
MAX_TEXT = 200


class NoticeUnreadable(HeteroError):
    """Whether there is a notice can't be told now. Another try may succeed."""


class NoticeSource(Protocol):
    """Where the notices of one machine come from."""

    def read(self) -> str:
        """The notice as a text for people; empty if there is none. Blocks for some seconds at most.

        :raises NoticeUnreadable: the source does not answer, or its answer can't be read
        """


def check_notice_setting(setting: str, where: str) -> None:
    """Check that the setting is empty, names a provider, or is the absolute path of a notice file.

    :param where: the name of the setting in the error
    :raises SettingsError: it is none of these
    """
    if setting and setting not in PROVIDERS and not setting.startswith("/"):
        raise SettingsError(
            f"{where} = {shorten(setting)}",
            found="no known provider and no absolute path",
            remedy=f"{did_you_mean(setting, PROVIDERS)}Use one of {', '.join(PROVIDERS)}, or the path of a notice file",
        )


def notice_source(setting: str) -> NoticeSource | None:
    """The source that a checked setting names; None if it is empty.

    >>> [type(notice_source(setting)).__name__ for setting in ("aws", "/run/spot-notice", "")]
    ['AwsNotices', 'NoticeFile', 'NoneType']
    """
    if setting in PROVIDERS:
        return PROVIDERS[setting]()
    return NoticeFile(Path(setting)) if setting else None


def printable_text(text: str) -> str:
    """The text without line breaks and without what a log, a terminal or a page could read as markup."""
    return "".join(character for character in text[:MAX_TEXT] if character.isprintable() and character not in "<>")


class _MetadataServer:
    """Asks the metadata server of a provider. An environment's proxy is not used: it has a machine of its own."""

    def __init__(self, provider: str, url: str) -> None:
        self._provider = provider
        self._http = httpx.Client(base_url=url, timeout=TIMEOUT_S, trust_env=False)

    def ask(self, path: str, headers: Mapping[str, str], method: str = "GET") -> tuple[int, str]:
        """The status and the text of an answer.

        :raises NoticeUnreadable: no answer, or one that is too long or takes too long
        """
        give_up_at = time.monotonic() + 2 * TIMEOUT_S
        body = b""
        try:
            with self._http.stream(method, path, headers=headers) as answer:
                for part in answer.iter_bytes():
                    body += part
                    if len(body) > MAX_BYTES or time.monotonic() > give_up_at:
                        raise self.unreadable(path, "an answer that does not end")
        except httpx.HTTPError as error:
            raise self.unreadable(path, f"{type(error).__name__}: {error}") from error
        return answer.status_code, body.decode(errors="replace").strip()

    def unreadable(self, path: str, found: str) -> NoticeUnreadable:
        remedy = "The next look tries again; if this machine has another provider, change [hetero] spot_notices"
        return NoticeUnreadable(f"the notices of {self._provider} at {path}", found=found, remedy=remedy)


class AwsNotices:
    """Interruption notices and rebalance recommendations of EC2, with IMDSv2.

    "Spot Instance interruption notices" and "EC2 instance rebalance recommendations" in Amazon's EC2 User Guide: a
    path answers 404 until there is a notice. Then::

        GET /latest/meta-data/spot/instance-action
        {"action": "terminate", "time": "2017-09-18T08:22:00Z"}
        GET /latest/meta-data/events/recommendations/rebalance
        {"noticeTime": "2020-10-27T08:22:00Z"}

    "Use IMDSv2" there: a token by ``PUT /latest/api/token`` goes with each request; 401 means that it has ended.
    """

    _PATHS: ClassVar = {
        "/latest/meta-data/spot/instance-action": ("action", "time", "AWS is to {} this spot instance at {}"),
        "/latest/meta-data/events/recommendations/rebalance": (
            "noticeTime",
            "noticeTime",
            "AWS recommends since {} to leave this spot instance, which it may soon interrupt",
        ),
    }

    def __init__(self, url: str = METADATA_URL) -> None:
        self._server = _MetadataServer("AWS", url)
        self._token = ""

    def read(self) -> str:
        """See `NoticeSource`. An answer that can't be read hides no notice at the other path."""
        answers = {path: self._get(path) for path in self._PATHS}
        problem: NoticeUnreadable | None = None
        for path, (status, body) in answers.items():
            try:
                if notice := self._notice(path, status, body):
                    return notice
            except NoticeUnreadable as error:
                problem = problem or error
        if problem is not None:
            raise problem
        return ""

    def _notice(self, path: str, status: int, body: str) -> str:
        """The notice in an answer; empty if there is none."""
        if status == httpx.codes.NOT_FOUND:
            return ""
        if status != httpx.codes.OK:
            raise self._server.unreadable(path, f"HTTP {status}")
        first, second, text = self._PATHS[path]
        fields = _json_object(self._server, path, body)
        return text.format(_text(fields, first), _text(fields, second))

    def _get(self, path: str) -> tuple[int, str]:
        if self._token:
            status, body = self._server.ask(path, {"X-aws-ec2-metadata-token": self._token})
            if status != httpx.codes.UNAUTHORIZED:
                return status, body
        token_path = "/latest/api/token"  # noqa: S105  the path of a token, not a token
        status, self._token = self._server.ask(token_path, {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}, "PUT")
        if status != httpx.codes.OK or not (self._token.isascii() and self._token.isprintable()):
            self._token = ""
            raise self._server.unreadable(token_path, f"HTTP {status}, no token")
        return self._server.ask(path, {"X-aws-ec2-metadata-token": self._token})


class GcpNotices:
    """Preemption of Compute Engine's Spot VMs, and maintenance that stops a machine. A live migration is no notice.

    "Detect if a VM was preempted" in Google's "Create and use Spot VMs", and its "Query live migration notices"::

        GET /computeMetadata/v1/instance/preempted            (Metadata-Flavor: Google)    FALSE
        GET /computeMetadata/v1/instance/maintenance-event    (Metadata-Flavor: Google)    NONE
    """

    _VALUES: ClassVar = {
        "preempted": {"FALSE": "", "TRUE": "Google Cloud preempts this spot machine, which ends within 30 s"},
        "maintenance-event": {
            "NONE": "",
            "MIGRATE_ON_HOST_MAINTENANCE": "",
            "TERMINATE_ON_HOST_MAINTENANCE": "Google Cloud stops this machine for maintenance of its host",
        },
    }
    """The notice for each answer; empty: the answer is no notice."""

    def __init__(self, url: str = METADATA_URL) -> None:
        self._server = _MetadataServer("Google Cloud", url)

    def read(self) -> str:
        """See `NoticeSource`. An answer that can't be read hides no notice at the other path."""
        problem: NoticeUnreadable | None = None
        for name, notices in self._VALUES.items():
            path = f"/computeMetadata/v1/instance/{name}"
            status, body = self._server.ask(path, {"Metadata-Flavor": "Google"})
            if status == httpx.codes.NOT_FOUND:
                continue
            if status != httpx.codes.OK or body not in notices:
                problem = problem or self._server.unreadable(path, f"HTTP {status}: {shorten(body)}")
            elif notice := notices[body]:
                return notice
        if problem is not None:
            raise problem
        return ""


class AzureNotices:
    """Evictions of Azure's Spot VMs.

    "Azure Metadata Service: Scheduled Events for Linux VMs" of Microsoft. The events concern all machines of a scale
    set or an availability set, so the machine's own name is compared with ``Resources``, in any case of letters::

        GET /metadata/scheduledevents?api-version=2020-07-01    (Metadata: true)
        {"DocumentIncarnation": 2, "Events": [{"EventId": "C7061BAC-...", "EventStatus": "Scheduled",
          "EventType": "Preempt", "ResourceType": "VirtualMachine", "Resources": ["gpu_1"],
          "NotBefore": "Mon, 11 Apr 2022 22:26:58 GMT", "EventSource": "Platform"}]}
        GET /metadata/instance/compute/name?api-version=2021-02-01&format=text    (Metadata: true)    gpu_1

    The first answer can take two minutes, until Azure has enabled the service for the machine.
    """

    _EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
    _NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
    _HEADERS: ClassVar = {"Metadata": "true"}

    def __init__(self, url: str = METADATA_URL) -> None:
        self._server = _MetadataServer("Azure", url)

    def read(self) -> str:
        """See `NoticeSource`."""
        status, body = self._server.ask(self._EVENTS, self._HEADERS)
        if status == httpx.codes.NOT_FOUND:
            return ""
        if status != httpx.codes.OK:
            raise self._server.unreadable(self._EVENTS, f"HTTP {status}")
        events = _json_object(self._server, self._EVENTS, body).get("Events")
        if not isinstance(events, list):
            raise self._server.unreadable(self._EVENTS, "an answer without a list of events")
        evictions = [event for event in events if isinstance(event, dict) and event.get("EventType") == "Preempt"]
        if not evictions:
            return ""
        status, name = self._server.ask(self._NAME, self._HEADERS)
        if status != httpx.codes.OK:
            raise self._server.unreadable(self._NAME, f"HTTP {status}")
        for event in evictions:
            resources = event.get("Resources")
            if isinstance(resources, list) and name.lower() in (str(resource).lower() for resource in resources):
                return f"Azure evicts this spot machine, not before {_text(event, 'NotBefore') or 'now'}"
        return ""


class NoticeFile:
    """A file that exists once the machine is to be taken back; its first line is the cause.

    A script for any other provider can write it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> str:
        """See `NoticeSource`."""
        try:
            with self._path.open(encoding="utf-8", errors="replace") as file:
                lines = file.read(MAX_TEXT).splitlines()
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise NoticeUnreadable(
                f"the notice file {self._path}",
                found=type(error).__name__,
                remedy="Let the user of the agent read it; the next look tries again",
            ) from error
        first = printable_text(lines[0]).strip() if lines else ""
        return first or f"the notice file {printable_text(str(self._path))} exists"


PROVIDERS: dict[str, type[AwsNotices] | type[GcpNotices] | type[AzureNotices]] = {
    "aws": AwsNotices,
    "gcp": GcpNotices,
    "azure": AzureNotices,
}


def _json_object(server: _MetadataServer, path: str, body: str) -> dict[str, Any]:
    try:
        value = httpx.Response(200, text=body).json()
    except (JSONDecodeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise server.unreadable(path, f"an answer that is no JSON object: {shorten(body)}")
    return value


def _text(fields: Mapping[str, Any], name: str) -> str:
    return printable_text(str(fields.get(name, "")))


class SpotWatch:
    """The last notice that a source gave. Reading it never blocks. Nothing is read before `start`.

    :param source: None: there is never a notice
    """

    def __init__(self, source: NoticeSource | None, look_every_s: float | None = None) -> None:
        self.notice = ""
        """Why the provider takes this machine back; empty if it does not. The last one counts while no answer comes."""
        self.has_looked = source is None
        """Whether the source has answered once."""
        self._source, self._look_every_s = source, look_every_s or LOOK_EVERY_S
        self._is_closed = threading.Event()
        self._is_readable = True
        self._thread: threading.Thread | None = None

    @property
    def is_watching(self) -> bool:
        """Whether there is a source."""
        return self._source is not None

    def start(self) -> None:
        """Start the thread if there is a source. May be called again."""
        if self._thread is None and self._source is not None:
            self._thread = threading.Thread(target=self._run, args=(self._source,), name="spot-notices", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread soon. Does not wait for it."""
        self._is_closed.set()

    def _run(self, source: NoticeSource) -> None:
        while not self._is_closed.is_set():
            self._look(source)
            self._is_closed.wait(self._look_every_s)

    def _look(self, source: NoticeSource) -> None:
        try:
            notice = source.read()
        except NoticeUnreadable as error:
            if self._is_readable:
                log.warning("%s", error)
            self._is_readable = False
            return
        except Exception:  # the watch must go on, whatever an answer contains
            log.exception("A look for a notice of the provider failed. The next one tries again.")
            return
        if not self._is_readable:
            log.info("The notices of the provider can be read again.")
        if notice and not self.notice:
            log.warning("This machine is taken back: %s. Its tasks save and move.", notice)
        self.notice = notice
        self._is_readable = self.has_looked = True
