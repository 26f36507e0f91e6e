"""An event loop whose clock jumps to the next thing to do: minutes of polling in milliseconds."""

import asyncio
import selectors

import pytest


class JumpingLoop(asyncio.SelectorEventLoop):
    """Its time stands still while anything runs, in threads too, and jumps while everybody waits."""

    def __init__(self):
        super().__init__(JumpingSelector(self))
        self.jumped_s = 0.0
        self.in_threads = 0

    def time(self):
        return self.jumped_s

    def run_in_executor(self, executor, func, *args):
        self.in_threads += 1
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(self._count_down)
        return future

    def _count_down(self, _):
        self.in_threads -= 1


class JumpingSelector(selectors.DefaultSelector):
    def __init__(self, loop):
        super().__init__()
        self.loop = loop

    def select(self, timeout=None):
        events = super().select(0)
        if events or timeout == 0:
            return events
        if self.loop.in_threads or timeout is None:
            return super().select(10)
        self.loop.jumped_s += timeout
        return []


@pytest.fixture
def run():
    """Runs a coroutine on a loop whose clock jumps."""

    def _run(coroutine):
        with asyncio.Runner(loop_factory=JumpingLoop) as runner:
            return runner.run(coroutine)

    return _run
