"""``kedrl completion``: a script with which a shell completes verbs and options."""

from __future__ import annotations

import argparse

import shtab

from kedrl_dask.cli.common import SUCCESS, VERBS, Verb, option, print_out

NOTE = """\
examples:
  kedrl completion bash > ~/.local/share/bash-completion/completions/kedrl
  kedrl completion zsh > ~/.zfunc/_kedrl        with fpath+=~/.zfunc before compinit in ~/.zshrc
  kedrl completion fish > ~/.config/fish/completions/kedrl.fish

"""


def _run(options: argparse.Namespace) -> int:
    from kedrl_dask.cli import make_parser  # which imports the verbs

    print_out(shtab.complete(make_parser(*VERBS), options.shell))
    return SUCCESS


VERB = Verb(
    "Print a script with which a shell completes the verbs and options of kedrl.",
    {"shell": option("the shell", choices=("bash", "zsh", "fish"))},
    _run,
    NOTE,
)
