"""Code that runs in the task supervisor on a worker host."""
