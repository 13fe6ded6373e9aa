"""The interface of an executor, and the tasks that it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Generic, TypeVar, TypeVarTuple

Item = TypeVar("Item")
Result = TypeVar("Result")
Value = TypeVar("Value")
Shared = TypeVarTuple("Shared")

#: Reports that one item is done.
Advance = Callable[[], None]


@dataclass(frozen=True)
class Task(Generic[Item, Result]):
    """A chunk function, and the shared values that it takes after its item."""

    function: Callable[..., Result]
    shared: tuple[object, ...] = ()

    def __call__(self, item: Item) -> Result:
        """Run the function."""
        return self.function(item, *self.shared)

    def noted(self, item: Item) -> Result:
        """Run the function; a note on its error says on which item."""
        try:
            return self(item)
        except Exception as error:
            error.add_note(f"in {self.words(item)}")
            raise

    def words(self, item: object) -> str:
        """The name of the function and its item, for messages."""
        text = str(item)
        return f"{self.function.__name__} on {text if len(text) <= 200 else text[:200] + '…'}"


@dataclass(frozen=True)
class Reduction(Generic[Item, Value, Result]):
    """A task, a function that combines its results, and one that finishes their total."""

    task: Task[Item, Value]
    combine: Callable[[Value, Value], Value]
    finish: Callable[..., Result]

    def finishing(self, group: Sequence[Item]) -> Task[Value, Result]:
        """The task that finishes the total of a group."""
        return Task(self.finish, (group, *self.task.shared))


class Executor(ABC):
    """Runs chunk functions, in threads or on the workers of a cluster.

    What :meth:`share` and :meth:`hold` return are handles, which may stay on a worker. A handle can only be
    passed to a chunk function, as an item or a shared value, and there it is the value itself; hence its
    declared type is that of the value.
    """

    @property
    @abstractmethod
    def n_threads(self) -> int:
        """Number of chunk functions that run at the same time."""

    @property
    @abstractmethod
    def n_workers(self) -> int:
        """Number of processes that run chunk functions."""

    @property
    @abstractmethod
    def memory(self) -> int:
        """Default memory budget of a fit in each of these processes, in bytes."""

    @abstractmethod
    def share(self, value: Value) -> Value:
        """Make a value available to all chunk functions, and return its handle."""

    def warm_up(self, function: Callable[[int], None]) -> None:  # noqa: B027 - optional
        """Start ``function(number)`` once in every worker process, without waiting for it to finish.

        A new process needs seconds to import what chunk functions use, while the driver has other work.
        """

    def hold(
        self, function: Callable[[Item, *Shared], Result], items: Sequence[Item], *shared: *Shared
    ) -> list[Result]:
        """Compute ``function(item, *shared)``, leave the results where they are, and return handles."""
        return self._hold(Task(function, shared), items)

    def map(
        self,
        function: Callable[[Item, *Shared], Result],
        items: Sequence[Item],
        *shared: *Shared,
        advance: Advance | None = None,
    ) -> list[Result]:
        """Results of ``function(item, *shared)`` in the order of ``items``."""
        return self._map(Task(function, shared), items, advance)

    def attempt(
        self,
        function: Callable[[Item, *Shared], Result],
        items: Sequence[Item],
        *shared: *Shared,
        advance: Advance | None = None,
    ) -> list[Result | Exception]:
        """Like :meth:`map`, but a call that fails yields its exception and is not retried."""
        return self._attempt(Task(function, shared), items, advance)

    def reduce(
        self,
        function: Callable[[Item, *Shared], Value],
        groups: Sequence[Sequence[Item]],
        combine: Callable[[Value, Value], Value],
        finish: Callable[[Value, Sequence[Item], *Shared], Result],
        *shared: *Shared,
        advance: Advance | None = None,
    ) -> list[Result]:
        """``finish(total, group, *shared)`` for each group, in order.

        The total combines ``function(item, *shared)`` over the items of the group, pairwise in a tree whose
        shape depends only on their number.
        """
        return self._reduce(Reduction(Task(function, shared), combine, finish), groups, advance)

    # Below the typed interface a function and its shared values are one task. All but ``_map`` is written in
    # terms of it, for executors whose tasks run in this process.

    @abstractmethod
    def _map(
        self, task: Task[Item, Result], items: Sequence[Item], advance: Advance | None = None
    ) -> list[Result]: ...

    def _hold(self, task: Task[Item, Result], items: Sequence[Item]) -> list[Result]:
        return self._map(task, items)

    def _attempt(
        self, task: Task[Item, Result], items: Sequence[Item], advance: Advance | None
    ) -> list[Result | Exception]:
        def outcome(item: Item) -> Result | Exception:
            try:
                return task(item)
            except Exception as error:  # the caller handles it
                return error

        return self._map(Task(outcome), items, advance)

    def _reduce(
        self, how: Reduction[Item, Value, Result], groups: Sequence[Sequence[Item]], advance: Advance | None
    ) -> list[Result]:
        @wraps(how.task.function)  # errors name it
        def reduced(group: Sequence[Item]) -> Result:
            return how.finishing(group)(tree(group, how.task, how.combine))

        return self._map(Task(reduced), groups, advance)


def tree(
    items: Sequence[Item], leaf: Callable[[Item], Value], combine: Callable[[Value, Value], Value]
) -> Value:
    """Combine the leaves of all items pairwise, in an order that depends only on their number."""
    if len(items) == 1:
        return leaf(items[0])
    half = len(items) // 2
    return combine(tree(items[:half], leaf, combine), tree(items[half:], leaf, combine))
