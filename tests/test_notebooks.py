"""The notebooks run from top to bottom, the paired .ipynb files hold the same cells, and the log can be made again."""

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rltriton_jax

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
SCRIPTS = [path for path in sorted(NOTEBOOKS.glob("*.py")) if "# %%" in path.read_text(encoding="utf-8").splitlines()]


# The package that this process tests, also where it is not installed.
ROOT = str(Path(rltriton_jax.__file__).parents[1])
SEARCH = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))


def run(path, *arguments):
    done = subprocess.run(
        [sys.executable, path, *arguments],
        env={**os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": SEARCH},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def missing(path):
    """Packages that a script imports and this environment lacks."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return sorted(n for n in names if not (NOTEBOOKS / f"{n}.py").exists() and importlib.util.find_spec(n) is None)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_notebook_runs(path, monkeypatch):
    """In a kernel of Jupyter's where there is one, else as a script."""
    if names := missing(path):
        pytest.skip(f"needs {', '.join(names)}")
    if not all(map(importlib.util.find_spec, ("nbclient", "ipykernel"))):
        return run(path)
    import nbclient
    import nbformat

    monkeypatch.setenv("PYTHONPATH", SEARCH)
    monkeypatch.delenv("MPLBACKEND", raising=False)  # a kernel draws into its notebook unless told otherwise
    notebook = nbformat.read(path.with_suffix(".ipynb"), as_version=4)
    where = {"metadata": {"path": str(NOTEBOOKS)}}
    nbclient.NotebookClient(notebook, timeout=900, kernel_name="python3", resources=where).execute()
    pictures = [o for c in notebook.cells for o in c.get("outputs", ()) if "image/png" in o.get("data", ())]
    assert pictures


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_paired_notebook_is_the_same_and_has_no_outputs(path):
    def cells_of_script():
        for cell in path.read_text(encoding="utf-8").split("\n# %%")[1:]:
            kind, _, body = cell.partition("\n")
            lines = body.strip("\n").split("\n")
            if "[markdown]" in kind:
                lines = [line.removeprefix("#").removeprefix(" ") for line in lines]
            yield ("markdown" if "[markdown]" in kind else "code"), "\n".join(lines)

    cells = json.loads(path.with_suffix(".ipynb").read_text(encoding="utf-8"))["cells"]
    # The format allows one string a cell, or a list of lines.
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in cells] == list(cells_of_script())
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


def test_log_is_made_again_byte_for_byte(tmp_path):
    output = tmp_path / "rollouts.jsonl"
    run(NOTEBOOKS / "make_rollouts.py", "--output", output)
    assert output.read_bytes() == (NOTEBOOKS / "rollouts.jsonl").read_bytes()
