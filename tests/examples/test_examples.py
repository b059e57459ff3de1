"""Examples: runs with tiny settings; examples with other data are compiled only."""

import json
import re
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
TINY = {
    "own_loop.py": {"BATCH, STEPS = 256, 300": "BATCH, STEPS = 32, 2"},
    "own_constraint.py": {},
    "own_target.py": {"STEPS = 300": "STEPS = 2"},
    "dirty_pairs.py": {"EPOCHS = 0.2, 18": "EPOCHS = 0.2, 3", "load_digits().images": "load_digits().images[:300]"},
    "the_idea.ipynb": {"STEPS = 100": "STEPS = 2"},
    "dirty_table.ipynb": {"EPOCHS = 18": "EPOCHS = 3", "load_digits().images": "load_digits().images[:300]"},
}
"""Examples to run, with replacements that make them smaller."""

EXAMPLE_NAMES = sorted(path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".ipynb"))


def source(name: str) -> str:
    """Return the code of a script, or of the cells of a notebook."""
    text = (EXAMPLES / name).read_text()
    if name.endswith(".py"):
        return text
    return "\n\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code")


@pytest.mark.parametrize("name", TINY)
def test_an_example_runs(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code = source(name)
    for original, smaller in TINY[name].items():
        assert original in code
        code = code.replace(original, smaller)
    exec(compile(code, name, "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out


@pytest.mark.parametrize("name", [name for name in EXAMPLE_NAMES if name.endswith(".ipynb")])
def test_a_notebook_has_its_outputs(name):
    """Code hosts show the saved outputs, which `python docs/notebooks.py` writes."""
    cells = [cell for cell in json.loads((EXAMPLES / name).read_text())["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert outputs
    assert all(output["output_type"] in ("stream", "execute_result") for output in outputs)
    assert not any(output.get("name") == "stderr" for output in outputs)
    assert (EXAMPLES / name).stat().st_size < 100_000


@pytest.mark.parametrize("name", sorted(set(EXAMPLE_NAMES) - set(TINY)))
def test_examples_compile(name):
    compile(source(name), name, "exec")


def test_examples_are_listed_in_the_readme():
    readme = (EXAMPLES / "README.md").read_text()
    assert set(re.findall(r"\]\((\w+\.(?:py|ipynb))\)", readme)) == set(EXAMPLE_NAMES)
    assert sum(name.endswith(".py") for name in EXAMPLE_NAMES) <= 14
    assert sum(name.endswith(".ipynb") for name in EXAMPLE_NAMES) == 2
