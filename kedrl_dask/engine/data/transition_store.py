"""The store of recorded transitions: what a user fills and what every fit reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kedrl_dask.engine.data.column_moments import Moments
from kedrl_dask.engine.data.encoding import Encoding
from kedrl_dask.engine.data.episode_index import EpisodeIndex
from kedrl_dask.engine.data.prefix import prefix_attributes, prefix_fingerprint, prefix_moments
from kedrl_dask.engine.data.transitions import EpisodeRows, Transitions, pair
from kedrl_dask.engine.data.validation import (
    DataError,
    DataWarning,
    check_arrays,
    check_end,
    check_scale,
    check_sequence,
)
from kedrl_dask.engine.data.writer import Writer, fingerprint, open_committed
from kedrl_dask.engine.storage.array_store import ArrayStore
from kedrl_dask.engine.storage.atomic import PathLike, check_vacant
from kedrl_dask.engine.storage.directories import StoreError, digest
from kedrl_dask.engine.storage.schema import TRANSITION_DIGESTS, TRANSITIONS
from kedrl_dask.utils.arrays import Array
from kedrl_dask.utils.html import html_table

__all__ = [
    "DataError",
    "DataWarning",
    "EpisodeRows",
    "StoreError",
    "TransitionStore",
    "Transitions",
    "Writer",
]


class TransitionStore:
    """Recorded episodes on disk, sorted by (episode, step), one row per recorded time point.

    A row is a transition when the next row belongs to the same episode (its successor), or when it is
    terminated (it has no successor). The last row of a truncated episode is not a transition.

    Made by :meth:`from_arrays`, :meth:`from_table`, :meth:`writer` or :meth:`open`. It shows the rows that
    were committed then; open it again after appending.

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> store = TransitionStore.from_arrays(
    ...     tempfile.mkdtemp(), state=np.arange(6.0).reshape(-1, 1), action=np.arange(6.0).reshape(-1, 1) % 2,
    ...     reward=np.arange(6.0).reshape(-1, 1), episode=[0, 0, 0, 1, 1, 1], step=[0, 1, 2, 0, 1, 2],
    ... )
    >>> store.n_rows, store.n_episodes, store.n_transitions
    (6, 2, 4)
    >>> store.transitions(2, 5).rows
    array([3, 4])
    """

    def __init__(
        self,
        arrays: ArrayStore,
        attributes: dict[str, Any] | None = None,
        base: TransitionStore | None = None,
    ) -> None:
        """Keep the arrays and the attributes, as committed now unless given."""
        self._arrays = arrays
        self._attributes = arrays.attributes if attributes is None else attributes
        self._base = base
        self._index = EpisodeIndex(arrays, self.n_rows)

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
        """Store arrays in memory; rows may come in any order.

        Parameters
        ----------
        path : path-like
            Directory of the new store.
        state, action, reward : (n, columns) array-like
            One row per recorded time point; the reward is the one received for that row's action.
        episode, step : (n,) array-like of int
            Which episode, and which time in it; steps rise by one within an episode.
        terminated : (n,) array-like of bool, optional
            True on the last row of episodes that ended for good, not of those cut off.
        chunk_rows : int
            Rows per stored chunk, the unit of reading.

        Raises
        ------
        DataError
            Before any file is created; the message names array, row and remedy.
        """
        check_vacant(path)
        given = {"state": state, "action": action, "reward": reward}
        given |= {"episode": episode, "step": step}
        rows = check_arrays({**given, "terminated": terminated}, {}, lambda row: f"row {row}")
        order = np.lexsort((rows["step"], rows["episode"]))
        sequence = {name: rows[name][order] for name in ("episode", "step", "terminated")}
        last = check_sequence(sequence, lambda row: f"row {order[row]}", None)
        check_end(last, f"row {order[-1]}")
        dims = {name: rows[name].shape[1] for name in ("state", "action", "reward")}
        for name in dims:
            ends = np.stack([rows[name].min(axis=0), rows[name].max(axis=0)]).astype(np.float64)
            check_scale(name, np.abs(ends).max(axis=0))
        with Writer.create(path, dims, chunk_rows) as writer:
            for start in range(0, order.size, chunk_rows):
                part = order[start : start + chunk_rows]
                writer.append(**{name: values[part] for name, values in rows.items()})
        return cls.open(path)

    @classmethod
    def from_table(
        cls, path: PathLike, source: Any, columns: Mapping[str, Any], **options: Any
    ) -> TransitionStore:
        """Store a table of recorded time points, in memory or in files of any size; rows in any order.

        ``columns`` names those of the episode, step or time, state, action, reward, and flags of its end;
        they and the options are described at :func:`kedrl_dask.engine.ingest.ingest`.
        """
        # Workers open stores; they need not load Arrow, pandas and rich for it.
        from kedrl_dask.engine.ingest.ingest import ingest

        ingest(path, source, columns, **options)
        return cls.open(path)

    @classmethod
    def writer(
        cls, path: PathLike, *, state_dim: int, action_dim: int, reward_dim: int, chunk_rows: int = 16_384
    ) -> Writer:
        """Begin a new store that is filled piece by piece; use it in a ``with`` statement.

        The store can be opened once the statement ends without an error.
        """
        dims = {"state": state_dim, "action": action_dim, "reward": reward_dim}
        return Writer.create(path, dims, chunk_rows)

    @classmethod
    def open(cls, path: PathLike) -> TransitionStore:
        """Open a complete store for reading.

        Raises
        ------
        StoreError
            If there is none, or its writer did not finish.
        """
        return cls(open_committed(path))

    def appender(self) -> Writer:
        """Return a writer for further episodes; use it in a ``with`` statement.

        Their numbers must be above the stored ones, or go on with the last one if it is not terminated.
        After an error the store is as it was before.
        """
        return Writer.resume(self.path)

    def grown_from(self, n_rows: int) -> TransitionStore:
        """This store, seen as grown from its first rows.

        A fit makes all choices that do not depend on the policy on these rows alone, and a cache that has
        their sums needs those of the other rows only. Results do not depend on whether it has.
        """
        if not 2 <= n_rows <= self.n_rows:
            raise ValueError(f"{self.path}: has {self.n_rows} rows, cannot have grown from {n_rows}")
        attributes = prefix_attributes(self._arrays, n_rows)
        return TransitionStore(self._arrays, self._attributes, TransitionStore(self._arrays, attributes))

    @property
    def base(self) -> TransitionStore:
        """The first rows, if the store is seen as grown from them; else the store itself."""
        return self if self._base is None else self._base

    def fingerprint_of(self, n_rows: int) -> str:
        """Fingerprint that a store of the first rows has."""
        return prefix_fingerprint(self._arrays, n_rows)

    @property
    def path(self) -> Path:
        """Directory of the store."""
        return self._arrays.path

    @property
    def n_rows(self) -> int:
        """Recorded time points."""
        return int(self._attributes["n_rows"])

    @property
    def n_episodes(self) -> int:
        """Episodes."""
        return int(self._attributes["n_episodes"])

    @property
    def n_terminal(self) -> int:
        """Episodes that ended for good: transitions without a successor."""
        return int(self._attributes["n_terminal"])

    @property
    def n_transitions(self) -> int:
        """Rows with a successor, and terminal ones."""
        return self.n_rows - self.n_episodes + self.n_terminal

    @property
    def state_dim(self) -> int:
        """Columns of the state."""
        return self._arrays.size("state_dim")

    @property
    def action_dim(self) -> int:
        """Columns of the action."""
        return self._arrays.size("action_dim")

    @property
    def reward_dim(self) -> int:
        """Columns of the reward."""
        return self._arrays.size("reward_dim")

    @property
    def chunk_rows(self) -> int:
        """Rows per stored chunk."""
        return self._arrays.chunk("row")

    @property
    def fingerprint(self) -> str:
        """Hexadecimal sha256 of the content; equal for equal rows and chunk_rows."""
        return str(self._attributes["fingerprint"])

    @property
    def encoding(self) -> Encoding | None:
        """What the columns are, if the store was made from a table."""
        return Encoding.from_json(self._attributes["encoding"]) if "encoding" in self._attributes else None

    @property
    def statistics(self) -> dict[str, dict[str, Array]]:
        """Column-wise ``mean``, ``std``, ``min`` and ``max`` over all rows of state, action and reward."""
        given = self._attributes.get("moments") or prefix_moments(self._arrays, self.n_rows)
        moments = {name: Moments.from_json(m) for name, m in given.items()}
        return {
            name: {"mean": m.mean, "std": m.deviation, "min": m.minimum, "max": m.maximum}
            for name, m in moments.items()
        }

    def transitions(self, start: int = 0, stop: int | None = None) -> Transitions:
        """Read the transitions that begin in rows ``start`` to ``stop`` (excluded).

        One row more is read, for the successor of the last. Over any partition of the rows the results
        concatenate to the whole.
        """
        stop = self.n_rows if stop is None else stop
        if not 0 <= start <= stop <= self.n_rows:
            raise ValueError(f"{self.path}: has {self.n_rows} rows, asked for {start}:{stop}")
        ahead = min(stop + 1, self.n_rows)
        episode, state, action, reward = (
            self._arrays.read(name, start, ahead) for name in ("episode", "state", "action", "reward")
        )
        for name, values in (("state", state), ("action", action), ("reward", reward)):
            self._require_finite(name, values, np.arange(start, ahead))
        continues = np.zeros(stop - start, dtype=bool)
        continues[: max(0, ahead - start - 1)] = episode[1:] == episode[:-1]
        local = np.flatnonzero(continues | self._arrays.read("terminated", start, stop))
        return pair(np.arange(start, ahead), episode, local, local + continues[local], state, action, reward)

    def sample(self, n: int, rng: np.random.Generator) -> Transitions:
        """Draw ``n`` transitions uniformly without replacement; all of them if there are no more.

        The draw depends on the content and the generator only, not on the chunks. Rows come back sorted.
        """
        if n < 1:
            raise ValueError(f"sample: n is {n}, expected at least 1")
        if n >= self.n_transitions:
            return self.transitions()
        rows = self._index.draw_transitions(n, self.n_transitions, rng)
        successors = rows + self._index.continues(rows)
        needed = np.union1d(rows, successors)
        episode, state, action, reward = (
            self._arrays.take(name, needed) for name in ("episode", "state", "action", "reward")
        )
        for name, values in (("state", state), ("action", action), ("reward", reward)):
            self._require_finite(name, values, needed)
        return pair(
            needed,
            episode,
            np.searchsorted(needed, rows),
            np.searchsorted(needed, successors),
            state,
            action,
            reward,
        )

    def _require_finite(self, name: str, values: Array, rows: Array) -> None:
        """Refuse what no writer of this package lets pass: a file was altered."""
        if not np.isfinite(values).all():
            bad = np.flatnonzero(~np.isfinite(values).all(axis=1))[0]
            raise StoreError(
                f"{self.path}: array {name}, row {rows[bad]} is {values[bad].tolist()}, expected finite "
                "numbers; the file is damaged: restore the store from a copy, or write it again"
            )

    def block_edges(self, n_blocks: int) -> list[int]:
        """Cut the rows into at most ``n_blocks`` blocks of whole episodes of nearly equal length.

        Returns
        -------
        list of int
            Row numbers, strictly increasing from 0 to ``n_rows``; block i is rows edges[i] to edges[i+1].

        Notes
        -----
        Each edge is the episode boundary nearest to the equal cut; only episode numbers around it are read.
        Of a store seen as grown from its first rows, the edges of these stay, and blocks are added.
        """
        if n_blocks < 1:
            raise ValueError(f"block_edges: n_blocks is {n_blocks}, expected at least 1")
        if self._base is None:
            return self._index.edges(n_blocks)
        return self._index.grown_edges(self._base.block_edges(n_blocks))

    def episode_windows(self, max_rows: int, rng: np.random.Generator) -> EpisodeRows:
        """Read whole episodes at random, about ``max_rows`` rows of them; all rows if there are no more.

        The rows are divided into slots of equal length. The episodes that begin in a slot are read
        together, for one slot after the other in random order, until there are enough rows: at most half
        as many too many. An episode longer than a slot is cut to a slot's length; its last row is then
        not terminated.
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
        self._require_finite("reward", read["reward"], rows)
        return EpisodeRows(**read)

    @property
    def n_chunks(self) -> int:
        """Stored chunks of rows."""
        return -(-self.n_rows // self.chunk_rows)

    def verify(self) -> None:
        """Read everything and compare it with the digests taken when it was written.

        Raises
        ------
        StoreError
            Naming the damaged array, chunk and file.
        """
        for found in self.damage(0, self.n_chunks):
            raise StoreError(found)

    def damage(self, first: int, last: int) -> Iterator[str]:
        """What is wrong with the chunks from ``first`` to ``last`` (excluded), in words."""
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
        """Digests (chunk, array, byte) of all chunks; None if they are damaged themselves."""
        tail = [list(bytes.fromhex(text)) for text in self._attributes["tail_digests"]]
        try:
            digests = self._arrays.read(TRANSITION_DIGESTS.name, 0, self.n_rows // self.chunk_rows)
        except StoreError:
            return None
        digests = np.concatenate((digests, np.array([tail], dtype=np.uint8))) if tail else digests
        return digests if fingerprint(digests) == self.fingerprint else None

    def _summary(self) -> dict[str, str]:
        """Return what one wants to see at a glance."""
        return {
            "path": str(self.path),
            "rows": f"{self.n_rows:,} in chunks of {self.chunk_rows:,}",
            "episodes": f"{self.n_episodes:,}",
            "transitions": f"{self.n_transitions:,}, of which terminal {self.n_terminal:,}",
            "dimensions": f"state {self.state_dim}, action {self.action_dim}, reward {self.reward_dim}",
            "fingerprint": self.fingerprint[:16],
        }

    def __repr__(self) -> str:
        """Summary, one line each."""
        return "\n".join(
            ["TransitionStore", *(f"  {key:<12} {text}" for key, text in self._summary().items())]
        )

    def _repr_html_(self) -> str:
        """Summary as a table, for notebooks."""
        return html_table("TransitionStore", self._summary().items())
