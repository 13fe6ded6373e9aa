"""``kedrl completion``: a script with which a shell completes verbs and options."""

from __future__ import annotations

import argparse

import shtab

from kedrl_dask.cli.common import SUCCESS, Verbs, add_verb, print_out
from kedrl_dask.cli.verb_names import VERBS

__all__ = ["add"]

SHELLS = ("bash", "zsh", "fish")

NOTE = """\
examples:
  kedrl completion bash > ~/.local/share/bash-completion/completions/kedrl
  kedrl completion zsh > ~/.zfunc/_kedrl        with fpath+=~/.zfunc before compinit in ~/.zshrc
  kedrl completion fish > ~/.config/fish/completions/kedrl.fish

"""


def add(verbs: Verbs) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "completion",
        _run,
        description="Print a script with which a shell completes the verbs and options of kedrl.",
        note=NOTE,
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell")


def _run(options: argparse.Namespace) -> int:
    from kedrl_dask.cli import make_parser  # which imports the verbs

    print_out(shtab.complete(make_parser(*VERBS), options.shell))
    return SUCCESS
