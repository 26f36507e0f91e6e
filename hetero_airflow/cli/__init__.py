"""The command line: ``airflow hetero …``.

`commands` is what every call of ``airflow`` imports, and it imports nothing heavy; `actions` is what the
commands do: read, hand over to a pure function that makes the text, print. What a user reads may hold
names that others chose, so every such name goes through `output.clean` and is never read as markup.
"""
