"""The processes of a lease on their own host: which they are, what they hold, and how they are ended. Linux only.

The task's supervisor, an agent and a scheduler on its own host use it. All of them run beside the tasks.
"""
