"""A page that answers: one HTML file from a results store, a saved model, or a directory that has one."""

from kedrl_dask.report.content import Content, from_model, from_results, read
from kedrl_dask.report.page import render, write

__all__ = ["Content", "from_model", "from_results", "read", "render", "write"]
