"""Why did the run end? Pure: the same evidence gives the same class, in the task and in the scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from hetero_airflow.recovery.evidence import Evidence
from hetero_airflow.recovery.failure import MAX_EVIDENCE, FailureClass
from hetero_airflow.recovery.failure_signs import FAILURE_SIGNS


@dataclass(frozen=True, slots=True)
class Classification:
    """The class of a failure, and the text or fact that says so."""

    failure_class: FailureClass
    evidence: str


def classify(evidence: Evidence) -> Classification:
    """The class of the first row of `FAILURE_SIGNS` that finds something; UNKNOWN where none does.

    >>> from hetero_airflow.recovery.evidence import RaisedException
    >>> found = classify(Evidence(raised=(RaisedException("RuntimeError", "CUDA error: uncorrectable ECC error"),)))
    >>> found.failure_class, found.evidence
    (<FailureClass.HARDWARE: 'hardware'>, '"uncorrectable ECC error" in the exception')
    >>> classify(Evidence(raised=(RaisedException("ValueError", "no such learning rate"),))).failure_class
    <FailureClass.UNKNOWN: 'unknown'>
    """
    for sign in FAILURE_SIGNS:
        found = sign.find(evidence)
        if found is not None:
            return Classification(sign.failure_class, _short(found))
    return Classification(FailureClass.UNKNOWN, _short(_what_ended_it(evidence)))


def _what_ended_it(evidence: Evidence) -> str:
    if evidence.raised:
        return f"{evidence.raised[0].type} ended the task"
    if evidence.kill_signal is not None:
        return f"ended by signal {evidence.kill_signal}"
    return "no evidence" if evidence.exit_code is None else f"exit code {evidence.exit_code}"


def _short(text: str) -> str:
    return text if len(text) <= MAX_EVIDENCE else f"{text[: MAX_EVIDENCE - 3]}..."
