"""Runs a command while a busy process uses each core: ``busy.py COMMAND [ARGUMENT …]``."""

import os
import subprocess
import sys

BUSY = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): pass"
"""Ends with its parent, also if that was killed."""


def main(command: list[str]) -> int:
    """Run the command to its end; return its exit code."""
    busy = [subprocess.Popen([sys.executable, "-c", BUSY, str(os.getpid())]) for _ in range(os.cpu_count() or 1)]
    try:
        return subprocess.run(command, check=False).returncode
    finally:
        for process in busy:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
