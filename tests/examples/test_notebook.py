"""The notebook runs from the first cell to the last, and shows what it says."""

import os
import sys
from pathlib import Path

import pytest
from peers import imported
from waiting import HANGING

nbclient = nbformat = None
peers = imported(globals(), "nbclient", "nbformat")
NOTEBOOK = Path(__file__).parents[2] / "examples" / "start.ipynb"


@pytest.mark.full
@pytest.mark.slow
def test_the_notebook(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # outputs are not kept in the repository
    nbclient.NotebookClient(notebook, timeout=HANGING, resources={"metadata": {"path": tmp_path}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    *_, asked, merged = (output["data"]["text/plain"] for output in outputs if output.output_type == "execute_result")
    assert "Moon Street" in asked and asked == merged
    written = "".join(output.get("text", "") for output in outputs)
    assert "trainable params" in written and "Traceback" not in written
    assert (tmp_path / "notebook_run" / "merged" / "config.json").is_file()
