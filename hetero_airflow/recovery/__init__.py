"""What a failure was, and what it changes: pure, so that the task's process and the scheduler come to the same."""
