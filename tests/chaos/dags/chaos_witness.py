"""A witness of who uses a device, which knows nothing of the plugin but the variable that tells a task its devices.

Each half of a device is a file with a lock of the kernel. A task takes the locks of its devices. Children that it forks
inherit them, also those that leave its session. The kernel releases a lock when the last process that has it is gone;
a frozen process keeps it. So a lock that is taken already is a device with two users.
"""

import fcntl
import json
import os
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

VARIABLE = "HETERO_AIRFLOW_LEASE"
JOURNAL = "witness.jsonl"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class Witness:
    """The locks and the journal in one folder."""

    def __init__(self, folder):
        self.folder = Path(folder)

    @contextmanager
    def use(self, task, lease=None):
        """Hold the locks of a lease's devices, and write when its use began and ended.

        :param task: what the task is called in the journal
        :param lease: as in the variable; the variable itself where nothing is said
        """
        lease = lease or json.loads(os.environ[VARIABLE])
        about = {**me(), "task": task, "lease": lease["id"], "token": lease["token"], "worker": lease["worker"]}
        files, devices = [], []
        for device in lease["ids"]:
            taken, holders = self._take(f"{lease['worker']}:{device}", 1 if lease["share"] else 2, about)
            files += taken
            devices.append(device)
            if holders:
                self.write({**about, "event": "double", "device": device, "holders": holders})
        self.write({**about, "event": "start", "devices": devices})
        try:
            yield files
        finally:
            self.write({**about, "event": "end"})
            for file in files:
                os.close(file)  # no unlock: that would also take the lock from the children

    def write(self, line):
        """Append a line to the journal."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = os.open(self.folder / JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, (json.dumps({**line, "at": time.time()}) + "\n").encode())
        finally:
            os.close(file)

    def lines(self):
        """The journal; empty if there is none."""
        path = self.folder / JOURNAL
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _take(self, device, count, about):
        """Locks of so many halves of a device; if some are missing, also their holders."""
        taken, holders = [], []
        for half in (0, 1):
            if len(taken) == count:
                break
            file = os.open(self._lock_of(device, half), os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _with_state(os.pread(file, 4096, 0))
                if holder not in holders:
                    holders.append(holder)
                os.close(file)
                continue
            os.ftruncate(file, 0)
            os.pwrite(file, json.dumps(about).encode(), 0)
            taken.append(file)
        return taken, holders if len(taken) < count else []

    def _lock_of(self, device, half):
        folder = self.folder / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{quote(device, safe='')}.{half}"


def me():
    """This process: a later one with the same pid is another one."""
    return {"pid": os.getpid(), "ticks": int(_stat(os.getpid())[19]), "boot": _BOOT.read_text().strip()}


def no_lease():
    """What stands for the lease of a task that uses no device."""
    process = me()
    return {"id": f"none {process['pid']} {process['ticks']}", "token": f"none {process['pid']} {process['ticks']}",
            "worker": "", "ids": [], "share": None}  # fmt: skip


def state_of(process):
    """The state of a process that `me` has named: a letter such as R, S or T (frozen); "gone" without it."""
    try:
        fields = _stat(process["pid"])
    except OSError:
        return "gone"
    return fields[0] if int(fields[19]) == process["ticks"] else "gone"


def leave_daemon(seconds, descriptors):
    """Leave a child in a session of its own, which keeps these files open for so long."""
    if os.fork() == 0:
        os.setsid()
        first = 0
        for file in sorted(descriptors):
            os.closerange(first, file)
            first = file + 1
        os.closerange(first, 65536)
        time.sleep(seconds)
        os._exit(0)


def _stat(pid):
    """What follows the name in ``/proc/PID/stat``."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode().split()


def _with_state(text):
    """Who holds a lock, as its file says, and whether that process runs, is frozen, or has left it to a child."""
    holder = json.loads(text) if text else {}
    return {**holder, "state": state_of(holder) if holder else "unknown"}


if __name__ == "__main__":
    # started by hand: use the device, say so, and stay until the input ends
    with Witness(sys.argv[1]).use(sys.argv[2], json.loads(sys.argv[3])) as descriptors_of_locks:
        if sys.argv[4:]:
            leave_daemon(float(sys.argv[4]), descriptors_of_locks)
        print("ready", flush=True)
        sys.stdin.read()
