"""The fork server of ``[hetero] preload``, as other processes see it."""

import psutil


def fork_servers(scheduler: int, workers: int = 1) -> list[psutil.Process]:
    """The fork servers of a scheduler that have so many worker processes; the scheduler does not wait for them.

    :param scheduler: its pid
    """
    children = psutil.Process(scheduler).children()
    return [child for child in children if _is_fork_server(child) and len(child.children()) >= workers]


def _is_fork_server(process: psutil.Process) -> bool:
    try:
        return "multiprocessing.forkserver" in " ".join(process.cmdline())
    except psutil.Error:  # a worker process that has ended
        return False
