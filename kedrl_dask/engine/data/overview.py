"""Sizes, identity and statistics of a transition store, from its attributes."""

from __future__ import annotations

from pathlib import Path

from kedrl_dask.engine.data.column_moments import Moments
from kedrl_dask.engine.data.encoding import Encoding
from kedrl_dask.engine.data.episode_index import EpisodeIndex
from kedrl_dask.engine.storage.array_store import ArrayStore
from kedrl_dask.utils.arrays import Record, Vector
from kedrl_dask.utils.html import html_table


class Overview:
    """Facts about the committed rows of a store; only :attr:`statistics` may have to read any of them."""

    def __init__(self, arrays: ArrayStore, attributes: Record) -> None:
        self._arrays, self._attributes = arrays, attributes
        self._index = EpisodeIndex(arrays, self.n_rows)

    @property
    def path(self) -> Path:
        """Directory of the store."""
        return self._arrays.path

    @property
    def n_rows(self) -> int:
        """Number of recorded time points."""
        return int(self._attributes["n_rows"])

    @property
    def n_episodes(self) -> int:
        """Number of episodes."""
        return int(self._attributes["n_episodes"])

    @property
    def n_terminal(self) -> int:
        """Number of terminated episodes, whose last transitions have no successor."""
        return int(self._attributes["n_terminal"])

    @property
    def n_transitions(self) -> int:
        """Number of rows that have a successor or are terminal."""
        return self.n_rows - self.n_episodes + self.n_terminal

    @property
    def state_dim(self) -> int:
        """Number of columns of the state."""
        return self._arrays.size("state_dim")

    @property
    def action_dim(self) -> int:
        """Number of columns of the action."""
        return self._arrays.size("action_dim")

    @property
    def reward_dim(self) -> int:
        """Number of columns of the reward."""
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
        """The encoding of the columns, if the store was made from a table."""
        return Encoding.from_json(self._attributes["encoding"]) if "encoding" in self._attributes else None

    @property
    def statistics(self) -> dict[str, dict[str, Vector]]:
        """Column-wise ``mean``, ``std``, ``min`` and ``max`` over all rows of state, action and reward."""
        stored: Record = self._attributes.get("moments", {})
        moments = {name: Moments.from_json(m) for name, m in stored.items()} or self._index.moments()
        return {
            name: {"mean": m.mean, "std": m.deviation, "min": m.minimum, "max": m.maximum}
            for name, m in moments.items()
        }

    @property
    def n_chunks(self) -> int:
        """Number of stored chunks of rows."""
        return -(-self.n_rows // self.chunk_rows)

    def _summary(self) -> dict[str, str]:
        """Return the facts of an overview."""
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
            [type(self).__name__, *(f"  {key:<12} {text}" for key, text in self._summary().items())]
        )

    def _repr_html_(self) -> str:
        """Summary as a table, for notebooks."""
        return html_table(type(self).__name__, self._summary().items())
