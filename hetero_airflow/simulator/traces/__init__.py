"""Loaders of public traces, one a file. To add one: write ``traces/<name>.py`` and add a row to `TRACES`."""
