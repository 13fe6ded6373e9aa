"""The store of recorded transitions, which a user fills and every fit reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from kedrl_dask.engine.data.encoding import PARTS
from kedrl_dask.engine.data.episode_index import EpisodeIndex
from kedrl_dask.engine.data.overview import Overview
from kedrl_dask.engine.data.transitions import EpisodeRows, Shaping, Source, Transitions
from kedrl_dask.engine.data.validation import DataError as DataError
from kedrl_dask.engine.data.validation import DataWarning as DataWarning
from kedrl_dask.engine.data.validation import check_arrays, check_end, check_scale, check_sequence
from kedrl_dask.engine.data.writer import Writer, fingerprint, open_committed
from kedrl_dask.engine.storage.array_store import ArrayStore
from kedrl_dask.engine.storage.atomic import PathLike, check_vacant
from kedrl_dask.engine.storage.cache import fingerprint as identity
from kedrl_dask.engine.storage.directories import StoreError, digest
from kedrl_dask.engine.storage.schema import TRANSITION_DIGESTS, TRANSITIONS
from kedrl_dask.numerics.simulation.potential import Potential
from kedrl_dask.utils.arrays import Array, Indices, Mask, Record


class TransitionStore(Overview):
    """Recorded episodes on disk, sorted by (episode, step), one row per recorded time point.

    A row is a transition when the next row belongs to the same episode (its successor), or when it is
    terminated (it has no successor). The last row of a truncated episode is not a transition.

    Created by :meth:`from_arrays`, :meth:`from_table` or :meth:`writer`, and opened by :meth:`open`. It shows
    the rows that were committed at that time; open it again after appending.

    Examples
    --------
    >>> from kedrl_dask.datasets import simulation
    >>> simulation.write("example", simulation.PAIRS["gaussian-uniform"], 60)  # doctest: +ELLIPSIS
    TransitionStore
      path         example
      rows         62 in chunks of 16,384
      episodes     2
      transitions  60, of which terminal 0
      dimensions   state 5, action 1, reward 3
      fingerprint  ...
    """

    def __init__(
        self,
        arrays: ArrayStore,
        attributes: Record | None = None,
        base: TransitionStore | None = None,
        shaping: Shaping | None = None,
    ) -> None:
        """Keep the arrays and the attributes, which default to those committed now."""
        super().__init__(arrays, arrays.attributes if attributes is None else attributes)
        self._base, self._shaping = base, shaping

    @classmethod
    def from_arrays(
        cls,
        path: PathLike,
        state: npt.ArrayLike,
        action: npt.ArrayLike,
        reward: npt.ArrayLike,
        episode: npt.ArrayLike,
        step: npt.ArrayLike,
        terminated: npt.ArrayLike | None = None,
        chunk_rows: int = 16_384,
    ) -> TransitionStore:
        """Store arrays that are in memory; rows may be in any order.

        Parameters
        ----------
        path : path-like
            Directory of the new store.
        state, action, reward : (n, columns) array-like
            One row per recorded time point; the reward is that received for the row's action.
        episode, step : (n,) array-like of int
            Number of the episode, and time within it; steps rise by one within an episode.
        terminated : (n,) array-like of bool, optional
            True on the last row of episodes that ended, but not of those that were cut off.
        chunk_rows : int
            Rows per stored chunk, the unit of reading.

        Raises
        ------
        DataError
            Before any file is created; the message names array, row and remedy.

        Examples
        --------
        >>> store = TransitionStore.from_arrays(
        ...     "arrays", state=[[0.0], [1.0], [4.0], [2.0]], action=[[1.0], [0.0], [1.0], [2.0]],
        ...     reward=[[0.5], [1.5], [0.0], [1.0]], episode=[0, 0, 1, 1], step=[0, 1, 0, 1],
        ... )
        >>> store.n_rows, store.n_episodes, store.n_transitions
        (4, 2, 2)
        """
        check_vacant(path)
        given = {"state": state, "action": action, "reward": reward, "episode": episode, "step": step}
        rows = check_arrays({**given, "terminated": terminated}, {}, lambda row: f"row {row}")
        order = np.lexsort((rows["step"], rows["episode"]))
        sequence = {name: rows[name][order] for name in ("episode", "step", "terminated")}
        last = check_sequence(sequence, lambda row: f"row {order[row]}", None)
        check_end(last, f"row {order[-1]}")
        dims: dict[str, int] = {name: rows[name].shape[1] for name in PARTS}
        for name in PARTS:
            ends = np.stack([rows[name].min(axis=0), rows[name].max(axis=0)]).astype(np.float64)
            check_scale(name, np.abs(ends).max(axis=0))
        with Writer.create(path, dims, chunk_rows) as writer:
            for start in range(0, order.size, chunk_rows):
                part = order[start : start + chunk_rows]
                writer.append_checked({name: values[part] for name, values in rows.items()})
        return cls.open(path)

    @classmethod
    def from_table(
        cls, path: PathLike, source: object, columns: Mapping[str, object], **options: Any
    ) -> TransitionStore:
        """Store a table of recorded time points, in memory or in files of any size, with rows in any order.

        ``columns`` maps episode, step or time, state, action, reward and the flags of an episode's end to
        columns of the table; :func:`kedrl_dask.engine.ingest.ingest.ingest` describes it and the options.

        Examples
        --------
        >>> import pandas as pd
        >>> table = pd.DataFrame({"id": [7, 7], "t": [0, 1], "x": [1.0, 2.5], "a": [0, 1], "r": [3, 1]})
        >>> columns = {"episode": "id", "step": "t", "state": "x", "action": "a", "reward": "r"}
        >>> TransitionStore.from_table("table", table, columns, progress="none").n_transitions
        1
        """
        # Imported here, because workers open stores and need not load Arrow for it.
        from kedrl_dask.engine.ingest.ingest import ingest

        ingest(path, source, columns, **options)
        return cls.open(path)

    @classmethod
    def writer(
        cls, path: PathLike, *, state_dim: int, action_dim: int, reward_dim: int, chunk_rows: int = 16_384
    ) -> Writer:
        """Return a writer of a new store that is filled piece by piece; use it in a ``with`` statement.

        The store can be opened once the statement has ended without an error.

        Examples
        --------
        >>> with TransitionStore.writer("pieces", state_dim=1, action_dim=1, reward_dim=1) as writer:
        ...     writer.append(state=[[0.0], [1.0]], action=[[1.0], [2.0]], reward=[[0.5], [1.5]],
        ...                   episode=[0, 0], step=[0, 1])
        >>> TransitionStore.open("pieces").n_rows
        2
        """
        dims = {"state": state_dim, "action": action_dim, "reward": reward_dim}
        return Writer.create(path, dims, chunk_rows)

    @classmethod
    def open(cls, path: PathLike, shaping: Shaping | None = None) -> TransitionStore:
        """Open a complete store for reading, with rewards as stored unless a ``shaping`` is given.

        Raises
        ------
        StoreError
            If there is none, or its writer did not finish.

        Examples
        --------
        >>> from kedrl_dask.datasets import simulation
        >>> _ = simulation.write("saved", simulation.PAIRS["gaussian-uniform"], 60)
        >>> TransitionStore.open("saved").n_transitions
        60
        """
        return cls(open_committed(path), shaping=shaping)

    def appender(self) -> Writer:
        """Return a writer for further episodes; use it in a ``with`` statement.

        Their numbers must be above those stored, or continue the last one if it is not terminated. After an
        error the store is as it was before.

        Examples
        --------
        >>> from kedrl_dask.datasets import simulation
        >>> store = simulation.write("growing", simulation.PAIRS["gaussian-uniform"], 60)
        >>> with store.appender() as writer:
        ...     writer.append(state=np.zeros((2, 5)), action=[[0.0], [1.0]], reward=np.ones((2, 3)),
        ...                   episode=[2, 2], step=[0, 1])
        >>> TransitionStore.open("growing").n_episodes
        3
        """
        return Writer.resume(self.path)

    def grown_from(self, n_rows: int) -> TransitionStore:
        """Return this store as one that was extended from its first rows.

        A fit makes all choices that do not depend on the policy on these rows alone, and a cache that has
        their sums needs only those of the other rows. Results do not depend on whether it has them.

        Examples
        --------
        >>> from kedrl_dask.datasets import simulation
        >>> store = simulation.write("extended", simulation.PAIRS["gaussian-uniform"], 60)
        >>> store.grown_from(50).base.n_transitions
        49
        """
        if not 2 <= n_rows <= self.n_rows:
            raise ValueError(f"{self.path}: has {self.n_rows} rows, cannot have grown from {n_rows}")
        attributes = EpisodeIndex(self._arrays, n_rows).attributes()
        return TransitionStore(self._arrays, self._attributes, TransitionStore(self._arrays, attributes))

    def shaped(self, potential: Potential, discount: float) -> TransitionStore:
        """Return the same store with rewards r + γ·Ψ(s') − Ψ(s), under a fingerprint of its own.

        Only transitions are shaped; :meth:`episode_windows` gives recorded rows as they are.
        """
        base = None if self._base is None else self._base.shaped(potential, discount)
        return TransitionStore(self._arrays, self._attributes, base, Shaping(potential, discount))

    @property
    def source(self) -> Source:
        """What a task needs to open the store in another process."""
        return Source(self.path.resolve(), self._shaping)

    @property
    def fingerprint(self) -> str:
        """Hexadecimal sha256 of the content; equal for equal rows, chunk_rows and shaping."""
        return self._identified(super().fingerprint)

    def _identified(self, rows: str) -> str:
        return rows if self._shaping is None else identity({"rows": rows, "shaping": self._shaping})

    @property
    def base(self) -> TransitionStore:
        """The store of the first rows after :meth:`grown_from`, otherwise the store itself."""
        return self if self._base is None else self._base

    def fingerprint_of(self, n_rows: int) -> str:
        """Return the fingerprint of a store of the first rows alone.

        Examples
        --------
        >>> from kedrl_dask.datasets import simulation
        >>> store = simulation.write("compared", simulation.PAIRS["gaussian-uniform"], 60)
        >>> store.fingerprint_of(62) == store.fingerprint, store.fingerprint_of(50) == store.fingerprint
        (True, False)
        """
        return self._identified(EpisodeIndex(self._arrays, n_rows).fingerprint())

    def transitions(self, start: int = 0, stop: int | None = None) -> Transitions:
        """Read the transitions that begin in rows ``start`` to ``stop`` (excluded).

        One more row is read, for the successor of the last. The results of any partition of the rows
        concatenate to the whole.

        Examples
        --------
        >>> from kedrl_dask.datasets import simulation
        >>> store = simulation.write("read", simulation.PAIRS["gaussian-uniform"], 60)
        >>> found = store.transitions(47, 52)
        >>> found.rows, found.inputs.shape
        (array([47, 48, 50, 51]), (4, 6))
        """
        stop = self.n_rows if stop is None else stop
        if not 0 <= start <= stop <= self.n_rows:
            raise ValueError(f"{self.path}: has {self.n_rows} rows, asked for {start}:{stop}")
        ahead = min(stop + 1, self.n_rows)
        episode = self._arrays.read("episode", start, ahead)
        continues = np.zeros(stop - start, dtype=bool)
        continues[: max(0, ahead - start - 1)] = episode[1:] == episode[:-1]
        local = np.flatnonzero(continues | self._arrays.read("terminated", start, stop))
        read = partial(self._arrays.read, start=start, stop=ahead)
        return self._paired(np.arange(start, ahead), episode, local, continues[local], read)

    def sample(self, n: int, rng: np.random.Generator) -> Transitions:
        """Draw ``n`` transitions uniformly without replacement, or all of them if there are no more.

        The draw depends on the content and the generator only, not on the chunks. Rows are returned sorted.

        Examples
        --------
        >>> from kedrl_dask.datasets import simulation
        >>> store = simulation.write("drawn", simulation.PAIRS["gaussian-uniform"], 60)
        >>> store.sample(3, np.random.default_rng(0)).rows
        array([31, 39, 52])
        """
        if n < 1:
            raise ValueError(f"sample: n is {n}, expected at least 1")
        if n >= self.n_transitions:
            return self.transitions()
        drawn = self._index.draw_transitions(n, self.n_transitions, rng)
        continues = self._index.continues(drawn)
        rows = np.union1d(drawn, drawn + continues)
        local, episode = np.searchsorted(rows, drawn), self._arrays.take("episode", rows)
        return self._paired(rows, episode, local, continues, partial(self._arrays.take, rows=rows))

    def _paired(
        self, rows: Indices, episode: Indices, local: Indices, continues: Mask, read: Callable[[str], Array]
    ) -> Transitions:
        """Pair the rows at ``local`` with their successors, or with themselves where they have none."""
        state, action, reward = (self._finite(name, read(name), rows) for name in PARTS)
        successor = local + continues
        paired = Transitions(
            rows=rows[local],
            episode=episode[local],
            inputs=np.hstack((state[local], action[local])),
            reward=reward[local],
            next_state=state[successor],
            next_action=action[successor],
            terminal=~continues,
        )
        return paired if self._shaping is None else self._shaping(paired)

    def _finite(self, name: str, values: Array, rows: Indices) -> Array:
        """Return the values, unless another program has stored NaN or infinity, checksum and all."""
        if not np.isfinite(values).all():
            bad = np.flatnonzero(~np.isfinite(values).all(axis=1))[0]
            raise StoreError(
                f"{self.path}: array {name}, row {rows[bad]} is {values[bad].tolist()}, expected finite "
                "numbers; the file is damaged: restore the store from a copy, or write it again"
            )
        return values

    def block_edges(self, n_blocks: int) -> list[int]:
        """Cut the rows into at most ``n_blocks`` blocks of whole episodes of nearly equal length.

        Returns
        -------
        list of int
            Row numbers, strictly increasing from 0 to ``n_rows``; block i is rows edges[i] to edges[i+1].

        Notes
        -----
        Each edge is the episode boundary nearest to the equal cut; only episode numbers around it are read.
        After :meth:`grown_from` the edges of the first rows are kept, and blocks are added.

        Examples
        --------
        >>> from kedrl_dask.datasets import simulation
        >>> store = simulation.write("blocks", simulation.PAIRS["gaussian-uniform"], 200)
        >>> store.block_edges(3)
        [0, 50, 150, 205]
        """
        if n_blocks < 1:
            raise ValueError(f"block_edges: n_blocks is {n_blocks}, expected at least 1")
        if self._base is None:
            return self._index.edges(n_blocks)
        return self._index.grown_edges(self._base.block_edges(n_blocks))

    def episode_windows(self, max_rows: int, rng: np.random.Generator) -> EpisodeRows:
        """Read whole episodes chosen at random, about ``max_rows`` rows, or all rows if there are no more.

        The rows are divided into slots of equal length. The episodes that begin in a slot are read together,
        one slot after the other in random order, until there are enough rows and at most half as many again.
        An episode longer than a slot is cut to a slot's length; its last row is then not terminated.

        Examples
        --------
        >>> from kedrl_dask.datasets import simulation
        >>> store = simulation.write("windows", simulation.PAIRS["gaussian-uniform"], 200)
        >>> store.episode_windows(100, np.random.default_rng(0)).reward.shape
        (105, 3)
        """
        if max_rows < 1:
            raise ValueError(f"episode_windows: max_rows is {max_rows}, expected at least 1")
        windows = [(0, self.n_rows)]
        if max_rows < self.n_rows:
            windows = self._index.draw_windows(max_rows, self.n_episodes, rng)
        read = {
            name: np.concatenate([self._arrays.read(name, start, stop) for start, stop in windows])
            for name in EpisodeRows._fields
        }
        rows = np.concatenate([np.arange(*window) for window in windows])
        self._finite("reward", read["reward"], rows)
        return EpisodeRows(**read)

    def verify(self) -> None:
        """Read everything and compare it with the digests taken when it was written.

        Raises
        ------
        StoreError
            Naming the damaged array, chunk and file.

        Examples
        --------
        >>> from kedrl_dask.datasets import simulation
        >>> store = simulation.write("checked", simulation.PAIRS["gaussian-uniform"], 60)
        >>> store.verify()
        >>> _ = store.path.joinpath("reward", "c", "0", "0").write_bytes(b"rubbish")
        >>> store.verify()  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        kedrl_dask...StoreError: checked: array reward, chunk 0 (rows 0:62) is damaged, ...
        """
        for found in self.damage(0, self.n_chunks):
            raise StoreError(found)

    def damage(self, first: int, last: int) -> Iterator[str]:
        """Describe what is wrong with the chunks from ``first`` to ``last`` (excluded), if anything.

        Examples
        --------
        >>> from kedrl_dask.datasets import simulation
        >>> store = simulation.write("sound", simulation.PAIRS["gaussian-uniform"], 60)
        >>> list(store.damage(0, store.n_chunks))
        []
        """
        remedy = "restore the store from a copy, or write it again"
        digests = self._digests()
        if digests is None:
            name = TRANSITION_DIGESTS.name
            yield f"{self.path}: array {name} is damaged, in the directory {self.path / name}; {remedy}"
            return
        for chunk in range(first, last):
            start = chunk * self.chunk_rows
            stop = min(start + self.chunk_rows, self.n_rows)
            for spec, expected in zip(TRANSITIONS, digests[chunk], strict=True):
                found, reason = b"", "its content has changed"
                try:
                    found = digest(self._arrays.read(spec.name, start, stop))
                except StoreError as error:
                    reason = f"it cannot be read ({error.__cause__})"
                if found != expected.tobytes():
                    yield (
                        f"{self.path}: array {spec.name}, chunk {chunk} (rows {start}:{stop}) is damaged, "
                        f"{reason}, in the file {self._arrays.file(spec.name, start)}; {remedy}"
                    )

    def _digests(self) -> Array | None:
        """Return the digests (chunk, array, byte) of all chunks; None if they are damaged themselves."""
        tail = [list(bytes.fromhex(text)) for text in self._attributes["tail_digests"]]
        try:
            digests = self._arrays.read(TRANSITION_DIGESTS.name, 0, self.n_rows // self.chunk_rows)
        except StoreError:
            return None
        digests = np.concatenate((digests, np.array([tail], dtype=np.uint8))) if tail else digests
        return digests if fingerprint(digests) == self.fingerprint else None
