"""The verbs of ``kedrl``, in a module that imports nothing: help must not wait for what verbs need."""

from __future__ import annotations

__all__ = ["VERBS"]

#: What each verb does; it is added by the module of its name, which is imported when the verb is given.
VERBS = {
    "demo": "simulate the paper's system, fit it, and compare with the truth; about a minute",
    "simulate": "write transitions of the paper's system, as many as wanted, to a store",
    "ingest": "store a table of your own: CSV, Parquet or Arrow, of any size and in any order",
    "plan": "project time, memory and disk of a fit, stage by stage",
    "fit": "fit a policy's return in a run that can be interrupted and gone on with",
    "evaluate": "evaluate policies again if data were appended or settings changed; for schedules",
    "report": "write one HTML page with the answers, and how far to trust them",
    "study": "many fits compared with the truth: the paper's simulation study",
    "doctor": "look at this machine: versions, memory, disk, cluster, and a small fit; say what is wrong",
    "cluster": "show the cluster that a file or an option describes, with the script of its jobs",
    "completion": "print a completion script for bash, zsh or fish",
}
