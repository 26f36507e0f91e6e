"""Why a run ended. Pure: the same evidence gives the same class in the task and in the scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from hetero_airflow.recovery.evidence import Evidence
from hetero_airflow.recovery.failure import MAX_EVIDENCE, FailureClass
from hetero_airflow.recovery.failure_signs import FAILURE_SIGNS


@dataclass(frozen=True, slots=True)
class Classification:
    """The class of a failure, and the text or fact that proves it."""

    failure_class: FailureClass
    evidence: str


def classify(evidence: Evidence) -> Classification:
    """The class of the first row of `FAILURE_SIGNS` that matches; UNKNOWN if none does.

    >>> from hetero_airflow.recovery.evidence import RaisedException
    >>> hardware = classify(Evidence(raised=(RaisedException("RuntimeError", "CUDA error: uncorrectable ECC error"),)))
    >>> hardware.failure_class, hardware.evidence
    (<FailureClass.HARDWARE: 'hardware'>, '"uncorrectable ECC error" in the exception')
    >>> classify(Evidence(raised=(RaisedException("ValueError", "no such learning rate"),))).failure_class
    <FailureClass.UNKNOWN: 'unknown'>
    """
    for sign in FAILURE_SIGNS:
        match = sign.find(evidence)
        if match is not None:
            return Classification(sign.failure_class, _shortened(match))
    return Classification(FailureClass.UNKNOWN, _shortened(_end_text(evidence)))


def _end_text(evidence: Evidence) -> str:
    if evidence.raised:
        return f"{evidence.raised[0].type} ended the task"
    if evidence.kill_signal is not None:
        return f"ended by signal {evidence.kill_signal}"
    return "no evidence" if evidence.exit_code is None else f"exit code {evidence.exit_code}"


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_EVIDENCE else f"{text[: MAX_EVIDENCE - 3]}..."
