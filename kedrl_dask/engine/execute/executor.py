"""What an executor does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Advance", "Executor", "noted", "tree", "words_of"]

Advance = Callable[[], None]


class Executor(ABC):
    """Moves chunk functions to where they run."""

    @property
    @abstractmethod
    def n_threads(self) -> int:
        """Number of chunk functions that run at once."""

    @property
    @abstractmethod
    def n_workers(self) -> int:
        """Number of processes that chunk functions run in."""

    @property
    @abstractmethod
    def memory(self) -> int:
        """Bytes that a fit may use in each of these processes, unless it is told otherwise."""

    @abstractmethod
    def share(self, value: Any) -> Any:
        """Make a value available to all chunk functions; pass the handle as a shared argument."""

    @abstractmethod
    def hold(self, function: Callable[..., Any], items: Sequence[Any], *shared: Any) -> list[Any]:
        """Compute ``function(item, *shared)`` and leave each result where it is; returns handles."""

    @abstractmethod
    def map(
        self,
        function: Callable[..., Any],
        items: Sequence[Any],
        *shared: Any,
        advance: Advance | None = None,
    ) -> list[Any]:
        """Results of ``function(item, *shared)`` in the order of ``items``, which may be handles."""

    def warm_up(self, function: Callable[[int], None]) -> None:  # noqa: B027 - nothing to do is an answer
        """Begin to call ``function(number)`` once in every worker process, and do not wait for it.

        A new process takes seconds to import what chunk functions need; the driver has work meanwhile.
        """

    def attempt(
        self,
        function: Callable[..., Any],
        items: Sequence[Any],
        *shared: Any,
        advance: Advance | None = None,
    ) -> list[Any]:
        """Like :meth:`map`, with the exception in place of a result that failed; none is tried again."""

        def one(item: Any) -> Any:
            try:
                return function(item, *shared)
            except Exception as error:  # handed to the caller
                return error

        return self.map(one, items, advance=advance)

    @abstractmethod
    def reduce(
        self,
        function: Callable[..., Any],
        groups: Sequence[Sequence[Any]],
        combine: Callable[[Any, Any], Any],
        finish: Callable[..., Any],
        *shared: Any,
        advance: Advance | None = None,
    ) -> list[Any]:
        """``finish(total, group, *shared)`` for each group, in order.

        The total is that of ``function(item, *shared)`` over the items of the group, combined two by two in
        a tree that depends on nothing but their number.
        """


def tree(items: Sequence[Any], leaf: Callable[[Any], Any], combine: Callable[[Any, Any], Any]) -> Any:
    """Combine the leaves of all items in a fixed order, few of them at a time."""
    if len(items) == 1:
        return leaf(items[0])
    half = len(items) // 2
    return combine(tree(items[:half], leaf, combine), tree(items[half:], leaf, combine))


def words_of(function: Callable[..., Any], item: Any) -> str:
    """A task in words: what it does, and on what."""
    text = str(item)
    return f"{function.__name__} on {text if len(text) <= 200 else text[:200] + '…'}"


def noted(error: BaseException, words: str) -> BaseException:
    """The error of a task, with the task."""
    error.add_note(f"in {words}")
    return error
