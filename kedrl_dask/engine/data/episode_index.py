"""Episodes, transitions and prefixes of a store by row number, found with as little reading as possible."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import lru_cache, reduce

import numpy as np

from kedrl_dask.engine.data.column_moments import Moments
from kedrl_dask.engine.data.encoding import PARTS
from kedrl_dask.engine.data.writer import chunk_digests, fingerprint
from kedrl_dask.engine.storage.array_store import ArrayStore
from kedrl_dask.engine.storage.directories import StoreError
from kedrl_dask.engine.storage.schema import TRANSITION_DIGESTS, TRANSITIONS
from kedrl_dask.utils.arrays import Indices, Mask, Record

#: Bounds on the number of pieces of the data that are read as a sample of the whole.
_FEWEST_WINDOWS, _MOST_WINDOWS = 4, 32
#: Rounds of drawing rows at random, of which more than four are hardly ever needed.
_MOST_ROUNDS = 200
#: Chunks of episode numbers kept in memory during one search.
_CHUNKS_KEPT = 32


class EpisodeIndex:
    """Answers to questions about rows sorted by episode, mostly from episode numbers and terminal flags.

    They are about the first ``n_rows`` rows, and depend on the content and on the generator given, never on
    the chunks.
    """

    def __init__(self, arrays: ArrayStore, n_rows: int) -> None:
        """Keep the arrays; nothing is read yet."""
        self._arrays = arrays
        self._n_rows = n_rows

    def _chunks(self) -> list[tuple[int, int]]:
        length = self._arrays.chunk("row")
        return [(start, min(start + length, self._n_rows)) for start in range(0, self._n_rows, length)]

    def fingerprint(self) -> str:
        """Return the fingerprint of a store of these rows alone; at most one chunk of data is read."""
        length = self._arrays.chunk("row")
        n_full = self._n_rows // length
        digests = self._arrays.read(TRANSITION_DIGESTS.name, 0, n_full)
        if self._n_rows % length:
            tail = {s.name: self._arrays.read(s.name, n_full * length, self._n_rows) for s in TRANSITIONS}
            digests = np.concatenate((digests, chunk_digests(tail)[None]))
        return fingerprint(digests)

    def attributes(self) -> Record:
        """Return the numbers of rows, episodes and terminal ones, and the fingerprint; data are not read."""
        n_episodes = n_terminal = 0
        last = None
        for start, stop in self._chunks():
            episode = self._arrays.read("episode", start, stop)
            n_episodes += int(np.count_nonzero(np.diff(episode))) + int(episode[0] != last)
            n_terminal += int(self._arrays.read("terminated", start, stop).sum())
            last = episode[-1]
        counts = {"n_rows": self._n_rows, "n_episodes": n_episodes, "n_terminal": n_terminal}
        return {**counts, "fingerprint": self.fingerprint()}

    def moments(self) -> dict[str, Moments]:
        """Return the moments that a commit of these rows would have written; all data are read."""
        return {
            name: reduce(Moments.merge, (Moments.of(self._arrays.read(name, *c)) for c in self._chunks()))
            for name in PARTS
        }

    def _reader(self) -> Callable[[int], int]:
        """Return a function from row to episode that keeps the last few chunks in memory."""
        length = self._arrays.chunk("row")

        @lru_cache(maxsize=_CHUNKS_KEPT)
        def chunk(i: int) -> Indices:
            return self._arrays.read("episode", i * length, min((i + 1) * length, self._n_rows))

        return lambda row: int(chunk(row // length)[row % length])

    def continues(self, rows: Indices) -> Mask:
        """Return for each of these rows whether the next one belongs to the same episode."""
        following = np.minimum(rows + 1, self._n_rows - 1)
        needed = np.union1d(rows, following)
        episode = self._arrays.take("episode", needed)
        same = episode[np.searchsorted(needed, rows)] == episode[np.searchsorted(needed, following)]
        return same & (following > rows)

    def draw_transitions(self, n: int, n_transitions: int, rng: np.random.Generator) -> Indices:
        """Return the sorted row numbers of ``n`` transitions drawn uniformly without replacement."""
        few = 2 * n <= n_transitions
        return np.sort(self._draw_few(n, rng) if few else self._draw_many(n, rng))

    def _draw_few(self, n: int, rng: np.random.Generator) -> Indices:
        """Draw rows at random, dropping repetitions and rows that are no transition, until there are ``n``.

        At least half of all rows are transitions and at most half of these are wanted, so that a few rounds
        suffice.
        """
        drawn = np.empty(0, dtype=np.int64)
        for _ in range(_MOST_ROUNDS):
            if drawn.size >= n:
                return drawn[:n]
            rows = rng.integers(self._n_rows, size=2 * n)
            rows = rows[np.sort(np.unique(rows, return_index=True)[1])]
            rows = rows[~np.isin(rows, drawn)]
            drawn = np.concatenate((drawn, rows[self._are_transitions(rows)]))
        raise self._too_few(n)

    def _draw_many(self, n: int, rng: np.random.Generator) -> Indices:
        """Draw from the list of all transitions, which is not much longer than the answer."""
        chunks = (np.arange(*chunk) for chunk in self._chunks())
        found = np.concatenate([rows[self._are_transitions(rows)] for rows in chunks])
        if len(found) < n:
            raise self._too_few(n)
        return rng.choice(found, size=n, replace=False, shuffle=False)

    def _too_few(self, n: int) -> StoreError:
        return StoreError(
            f"{self._arrays.path}: holds fewer than {n:,} transitions, but its attributes claim more; the "
            "store is damaged: restore it from a copy, or write it again"
        )

    def _are_transitions(self, rows: Indices) -> Mask:
        """Return which rows have a successor or are terminal."""
        return self.continues(rows) | self._arrays.take("terminated", rows)

    def edges(self, n_blocks: int) -> list[int]:
        """Return row boundaries of at most ``n_blocks`` blocks of whole episodes, close to equal cuts."""
        episode_at = self._reader()
        edges = {0, self._n_rows}
        n_blocks = min(n_blocks, self._n_rows)
        for i in range(1, n_blocks):
            target = i * self._n_rows // n_blocks
            before, after = self._start_of(target, episode_at), self._end_of(target, episode_at)
            edges.add(before if target - before <= after - target else after)
        return sorted(edges)

    def grown_edges(self, edges: list[int]) -> list[int]:
        """Extend the row boundaries of the blocks of the first rows by blocks of the rows after them.

        Added blocks are as long as the given ones on average, rounded up to whole episodes, and the last one
        takes the remainder: appending changes no block but the last. If the last of the given blocks ends
        within an episode, it is extended.
        """
        n_first = edges[-1]
        if n_first == self._n_rows:
            return edges
        length = max(1, n_first // (len(edges) - 1))
        if self.continues(np.array([n_first - 1]))[0]:
            edges = edges[:-1]
        grown, episode_at = list(edges), self._reader()
        while grown[-1] < self._n_rows:
            target = min(grown[-1] + length, self._n_rows)
            grown.append(self._end_of(target - 1, episode_at))
        return grown

    def draw_windows(self, max_rows: int, n_episodes: int, rng: np.random.Generator) -> list[tuple[int, int]]:
        """Return sorted row ranges of the episodes that begin in slots of rows chosen at random.

        Slots are equally long. Every episode begins in exactly one of them, so that short and long ones are
        equally likely. An episode longer than a slot is cut to a slot's length.
        """
        # Long episodes need long slots, or most of them would be cut.
        fitting = max_rows * n_episodes // (4 * self._n_rows)
        n_windows = min(max(fitting, _FEWEST_WINDOWS), _MOST_WINDOWS)
        slot = max(1, max_rows // n_windows)
        episode_at = self._reader()
        windows, total = [], 0
        for i in rng.permutation(-(-self._n_rows // slot)):
            begin, end = int(i) * slot, min((int(i) + 1) * slot, self._n_rows)
            if begin > 0 and episode_at(begin - 1) == episode_at(end - 1):
                continue  # one episode covers the slot: no need to look for its ends
            start = 0 if begin == 0 else self._end_of(begin - 1, episode_at)
            stop = self._end_of(end - 1, episode_at)
            stop = min(stop, self._start_of(stop - 1, episode_at) + slot)
            windows.append((start, stop))
            total += stop - start
            if total >= max_rows:
                break
        return sorted(windows)

    def _start_of(self, row: int, episode_at: Callable[[int], int]) -> int:
        """Return the first row of the episode that ``row`` belongs to."""
        episode, low, reach = episode_at(row), row, 1
        while low > 0 and episode_at(low) == episode:  # in growing strides, because most ends are near
            low, reach = max(0, low - reach), 2 * reach
        return bisect_left(range(row), episode, lo=low, key=episode_at)

    def _end_of(self, row: int, episode_at: Callable[[int], int]) -> int:
        """Return the row after the last one of the episode that ``row`` belongs to."""
        episode, high, reach = episode_at(row), row, 1
        while high < self._n_rows and episode_at(high) == episode:
            high, reach = min(self._n_rows, high + reach), 2 * reach
        return bisect_right(range(high), episode, lo=row, key=episode_at)
