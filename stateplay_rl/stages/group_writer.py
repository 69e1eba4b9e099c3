"""Groups are written by a thread of their own while the device samples the next one.

mp4 files, hashes and flushes of a group take seconds of one core, in which the device would wait. At most one group
is being written, so at most two are held in memory.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from stateplay_rl.stages.candidates import DrawnGroup, store_group
from stateplay_rl.stores.conditions import ConditionStore
from stateplay_rl.stores.groups import GroupStore

Stored = tuple[str, str]
"""(condition id, group id) of a group that lies on disk."""


class GroupWriter:
    """Use as a context manager: what was handed over lies on disk when the block ends, whatever ended it.

    Args:
        conditions: where real clips come from.
        groups: where groups go.
    """

    def __init__(self, conditions: ConditionStore, groups: GroupStore) -> None:
        self._conditions, self._groups = conditions, groups
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="group-writer")
        self._writing: tuple[Stored, Future[None]] | None = None

    def __enter__(self) -> Self:
        return self

    def put(self, drawn: DrawnGroup) -> list[Stored]:
        """Wait for the group before, then start writing this one.

        Returns:
            The group before, if there was one.

        Raises:
            Exception: what writing the group before raised.
        """
        finished = self.finish()
        future = self._thread.submit(store_group, self._conditions, drawn, self._groups)
        self._writing = ((drawn.record.condition_id, drawn.group_id), future)
        return finished

    def finish(self) -> list[Stored]:
        """Wait for the group that is being written, if there is one, and return it.

        Raises:
            Exception: what writing it raised.
        """
        if self._writing is None:
            return []
        stored, future = self._writing
        self._writing = None
        future.result()
        return [stored]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True)
