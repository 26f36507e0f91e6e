"""The command line: ``airflow hetero …``. It runs in the shell of an operator of Airflow, or as a worker's agent.

`commands` lists every command. Each call of ``airflow`` imports it, so it imports nothing heavy. A command is the
function of its name in the module of its subject: ``workers/drains.py`` holds ``airflow hetero drain``. To add a
command, write that function and add one entry to `commands`.

A command reads, passes values to a pure function that makes the text, and prints it. Names that users chose can hold
any character, so `output.clean` escapes them, and they are never read as markup.
"""
