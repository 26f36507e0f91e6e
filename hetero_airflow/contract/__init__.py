"""Formats that the scheduler, the task supervisor and the operators share."""
