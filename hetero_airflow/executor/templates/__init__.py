"""Renders device arguments that are templates, beside the scheduler's loop.

A template is code of a DAG author. Jinja has loops, macros and large numbers, so a template may use any amount of time
and memory. One that does must not stop the scheduler. A language without loops would take away filters and conditions
that templates use today, and ``'x' * 3000000000`` needs no loop. So templates stay Jinja, and the kernel limits them.

`renderer` runs in the scheduler and never blocks: it sends jobs to one process and reads the answers that are there.
`render_process` is that process. It forks for each job, and the fork has limits on CPU time, time and memory. The next
job of each DAG comes before the second of another, so a DAG with many bad templates delays only itself. Equal jobs are
rendered once. Jobs and answers are JSON. The scheduler never calls `contract.rendering`, which has no limits. Commands
and local runs do: there a user waits for a template of his own.
"""
