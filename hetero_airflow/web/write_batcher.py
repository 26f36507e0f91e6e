"""What agents tell, gathered for a moment and written together: a transaction a round, not one a heartbeat.

An agent is answered when what it told is in the database, so what was answered is never lost. A thousand agents at 5 s
are six heartbeats a round; ``tests/benchmarks/bench_agents.py`` prints what they cost.
"""

from __future__ import annotations

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
"""In a round: each takes some milliseconds, for which heartbeats wait."""


class WriteBatcher:
    """Writes in rounds, one at a time; what comes in meanwhile is for the next.

    :param take: writes a round and says what became of each; blocks, so it is called in a thread
    """

    def __init__(self, take: Callable[[Sequence[AgentMessage], datetime], list[AgentReply]]) -> None:
        self._take = take
        self._waiting: deque[tuple[AgentMessage, asyncio.Future[AgentReply]]] = deque()
        self._writing: asyncio.Task[None] | None = None

    async def tell(self, told: AgentMessage) -> AgentReply:
        """What became of it, once it is written.

        :raises StoreUnavailable: the database does not answer, or too many wait for it
        """
        if len(self._waiting) >= MAX_WAITING:
            raise StoreUnavailable(
                "to write what agents tell", found=f"{MAX_WAITING} that wait", remedy="Look why the database is slow"
            )
        future: asyncio.Future[AgentReply] = asyncio.get_running_loop().create_future()
        self._waiting.append((told, future))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write())
        return await future

    async def _write(self) -> None:
        while self._waiting:
            await asyncio.sleep(GATHER_S)
            batch = self._next_round()
            try:
                answers = await asyncio.to_thread(self._take, [told for told, _ in batch], datetime.now(UTC))
            except Exception as error:  # noqa: BLE001  it belongs to those who wait, whatever it is
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)

    def _next_round(self) -> list[tuple[AgentMessage, asyncio.Future[AgentReply]]]:
        """What waits, in order, without those whose client has gone; the inventories that are too many stay."""
        batch: list[tuple[AgentMessage, asyncio.Future[AgentReply]]] = []
        later: list[tuple[AgentMessage, asyncio.Future[AgentReply]]] = []
        inventories = 0
        while self._waiting and len(batch) < MAX_BATCH:
            told, future = self._waiting.popleft()
            if future.done():
                continue
            inventories += isinstance(told.event, WorkerSeen)
            if isinstance(told.event, WorkerSeen) and inventories > MAX_INVENTORIES:
                later.append((told, future))
            else:
                batch.append((told, future))
        self._waiting.extendleft(reversed(later))
        return batch
