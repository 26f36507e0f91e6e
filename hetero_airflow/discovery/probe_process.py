"""Runs one probe and writes its answer as JSON: ``python -m hetero_airflow.discovery.probe_process nvidia``.

Output that vendors' libraries print goes to standard error, so that it can't damage the answer.
"""

import math
import os
import signal
import sys
from collections.abc import Sequence

from pydantic import BaseModel

from hetero_airflow.discovery import GROUP, PROBES
from hetero_airflow.discovery.probe import ProbeResult
from hetero_airflow.errors import HeteroError
from hetero_airflow.registry import load


class ProbeReply(BaseModel):
    """A probe's result, or the text of its exception."""

    result: ProbeResult | None = None
    error: str | None = None


def run_probe(name: str) -> ProbeReply:
    """The answer of a probe of `PROBES` or of an entry point. An exception of the probe becomes a text."""
    try:
        result = load(GROUP, PROBES, name)()
    except HeteroError as error:
        return ProbeReply(error=str(error))
    except Exception as error:  # noqa: BLE001  a probe of another package may raise anything
        return ProbeReply(error=f"raised {type(error).__name__}: {error}")
    if not isinstance(result, ProbeResult):
        return ProbeReply(error=f"returned a {type(result).__name__}, not a ProbeResult")
    return ProbeReply(result=result)


def main(arguments: Sequence[str]) -> int:
    """Arguments: the probe's name, and optionally a number of seconds after which the process ends itself."""
    if len(arguments) > 1:
        # Ends a hung probe even if discovery itself was killed.
        signal.alarm(math.ceil(float(arguments[1])))
    with os.fdopen(os.dup(1), "wb") as answer:
        os.dup2(2, 1)
        answer.write(run_probe(arguments[0]).model_dump_json(exclude_defaults=True).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
