"""The Expedia application's data: the published file, lists, destinations, and the paper's two policies."""

from kedrl_dask.datasets.expedia.faults import FileError
from kedrl_dask.datasets.expedia.generator import write_like_published
from kedrl_dask.datasets.expedia.lists import read_lists
from kedrl_dask.datasets.expedia.panel import Cleaning, Encoder, Split, clean, describe, split, write
from kedrl_dask.datasets.expedia.policies import ClippedGaussian, greedy_action, reward_weighted_policy

__all__ = [
    "Cleaning",
    "ClippedGaussian",
    "Encoder",
    "FileError",
    "Split",
    "clean",
    "describe",
    "greedy_action",
    "read_lists",
    "reward_weighted_policy",
    "split",
    "write",
    "write_like_published",
]
