"""Collects the messages of agents for a moment and writes them together: one transaction per batch, not per message.

An agent gets its reply when its message is in the database, so no confirmed message is lost. A thousand agents with a
heartbeat every 5 s make six messages per batch; ``tests/benchmarks/bench_agents.py`` prints the cost.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from hetero_airflow.errors import StoreUnavailable
from hetero_airflow.store.sql.agent_messages import AgentMessage, AgentReply
from hetero_airflow.store.store import WorkerSeen

GATHER_S = 0.03
MAX_WAITING = 5000
MAX_BATCH = 500
MAX_INVENTORIES = 20
"""Inventories in one batch: each takes some milliseconds, and the heartbeats have to wait."""


class WriteBatcher:
    """Writes one batch at a time; messages that arrive meanwhile go into the next batch.

    :param take: writes a batch and returns the reply to each message; blocks, so it is called in a thread
    """

    def __init__(self, take: Callable[[Sequence[AgentMessage], datetime], list[AgentReply]]) -> None:
        self._take = take
        self._waiting: deque[tuple[AgentMessage, asyncio.Future[AgentReply]]] = deque()
        self._writing: asyncio.Task[None] | None = None

    async def write(self, message: AgentMessage) -> AgentReply:
        """Write the message; returns its reply.

        :raises StoreUnavailable: the database does not answer, or too many messages wait
        """
        if len(self._waiting) >= MAX_WAITING:
            raise StoreUnavailable(
                "to write a message of an agent",
                found=f"{MAX_WAITING} waiting messages",
                remedy="Find out why the database is slow",
            )
        future: asyncio.Future[AgentReply] = asyncio.get_running_loop().create_future()
        self._waiting.append((message, future))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_batches())
        return await future

    async def _write_batches(self) -> None:
        while self._waiting:
            await asyncio.sleep(GATHER_S)
            batch = self._next_batch()
            try:
                answers = await asyncio.to_thread(self._take, [message for message, _ in batch], datetime.now(UTC))
            except Exception as error:  # noqa: BLE001  every error goes to the waiting requests
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)

    def _next_batch(self) -> list[tuple[AgentMessage, asyncio.Future[AgentReply]]]:
        """The next messages in order, without those of disconnected clients; inventories above the limit wait."""
        batch: list[tuple[AgentMessage, asyncio.Future[AgentReply]]] = []
        later: list[tuple[AgentMessage, asyncio.Future[AgentReply]]] = []
        inventories = 0
        while self._waiting and len(batch) < MAX_BATCH:
            message, future = self._waiting.popleft()
            if future.done():
                continue
            inventories += isinstance(message.event, WorkerSeen)
            if isinstance(message.event, WorkerSeen) and inventories > MAX_INVENTORIES:
                later.append((message, future))
            else:
                batch.append((message, future))
        self._waiting.extendleft(reversed(later))
        return batch
