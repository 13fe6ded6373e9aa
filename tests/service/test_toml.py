"""Lines of the keys of TOML files."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kedrl_dask.service.toml import key_lines, read_toml

TEXT = '''# a comment with [brackets] = 1
top = 1
"quoted key" = 2  # key = 3
a.b.c = """
not = "a key"
[nor a table]
"""
list = [
    1, # x = 2
    [2, 3], "]",
]
inline = { x = 1, y = { z = 'a, b = 2', w = [1, 2] }, "q r" = 3 }

[table]
key = 'literal # [x]'
lit = \'\'\'
more = 1
\'\'\'

[table.sub]
key = 1979-05-27
[[array]]
name = "one"
[[array]]
name = "two"
'''


def test_key_lines__of_everything_that_toml_has():
    assert tomllib.loads(TEXT)["table"]["sub"]["key"]
    assert key_lines(TEXT) == {
        ("top",): 2,
        ("quoted key",): 3,
        ("a", "b", "c"): 4,
        ("list",): 8,
        ("inline",): 12,
        ("inline", "x"): 12,
        ("inline", "y"): 12,
        ("inline", "y", "z"): 12,
        ("inline", "y", "w"): 12,
        ("inline", "q r"): 12,
        ("table",): 14,
        ("table", "key"): 15,
        ("table", "lit"): 16,
        ("table", "sub"): 20,
        ("table", "sub", "key"): 21,
        ("array",): 22,
        ("array", "name"): 23,
    }


@given(st.dictionaries(st.text("abc_-1", min_size=1), st.text("ab\"'#[]{}=,\\\n\t é"), min_size=1))
def test_key_lines__whatever_the_values(values):
    lines = []
    for key, value in values.items():
        escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
        lines.append(f'{key} = "{escaped}"')
    text = "\n".join(lines)
    assert tomllib.loads(text) == values
    assert key_lines(text) == {(key,): i + 1 for i, key in enumerate(values)}


def test_line__of_the_nearest_table_that_is_there(tmp_path):
    (tmp_path / "x.toml").write_text(TEXT)
    found = read_toml(tmp_path / "x.toml")
    assert found.line("table.sub.other") == 20
    assert found.line("inline.y.z") == 12
    assert found.line("nowhere") is None
    (tmp_path / "x.toml").write_text("a = 1\nb = = 2\n")
    with pytest.raises(ValueError, match=r"x\.toml: not a TOML file: .*line 2"):
        read_toml(tmp_path / "x.toml")
