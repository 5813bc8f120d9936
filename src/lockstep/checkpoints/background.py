"""One piece of work beside training: started, waited for, its result or its error handed to whoever waits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """At most one thread at a time. The interpreter does not exit before it is done."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._result: T | None = None
        self._error: BaseException | None = None
        self.step = 0
        """What the work in flight, or the last one, is for."""

    def start(self, step: int, work: Callable[[], T]) -> None:
        """Runs `work` in a thread; the one before must have been joined."""
        assert self._thread is None, "the save before has not been waited for"
        self.step = step
        self._thread = threading.Thread(target=self._run, args=(work,), name=f"save-step-{step}", daemon=False)
        self._thread.start()

    def join(self) -> T | None:
        """Waits for the work in flight and returns its result, or raises its error; None if nothing is in flight."""
        if self._thread is None:
            return None
        self._thread.join()
        self._thread = None
        result, self._result = self._result, None
        error, self._error = self._error, None
        if error is not None:
            raise error
        return result

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self._result = work()
        except BaseException as error:  # noqa: BLE001 - carried to the thread that waits
            self._error = error
