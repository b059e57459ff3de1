"""What a newcomer writes to add a measure, in a file of their own: a function and its row, and it works everywhere."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.evaluation.making import make_run, vector_model, vectors

from contraport._utils.formatting import use_flag_style
from contraport.cli.listing import list_names, print_names
from contraport.errors import UsageError
from contraport.evaluation import evaluate
from contraport.evaluation.result_tables import result_rows
from contraport.metrics import METRICS, chosen, measure, metric_by_key
from contraport.metrics.registry import LABELS
from contraport.reporting import report


@pytest.fixture
def mine():
    @measure(
        "Near@{}",
        group="geometry",
        better="higher",
        unit="share of test items",
        pattern="{:.0%}",
        needs=(LABELS,),
        numbers=(1, 1000),
        usual=False,
    )
    def near(subject, number):
        """Share of the items that are as near to the mean as a number."""
        return torch.cdist(subject.test_x, subject.test_x.mean(dim=0, keepdim=True)).flatten().numpy() < number

    yield "near"
    del METRICS["near"]


def test_a_measure_of_ones_own_is_evaluated_printed_shown_and_listed(mine, tmp_path: Path, capsys) -> None:
    run = make_run(tmp_path / "run", vector_model(), data="<vectors>")
    data = (vectors(60, 3), vectors(40, 3))
    rows = evaluate(run, data=data, measures=["near", "uniformity"], progress=False)["rows"]
    assert all(set(row) == {"near@1", "near@1000", "uniformity"} for row in rows.values())
    assert rows["trained"]["near@1000"] == 1
    assert {"measure": "Near@1000", "trained": "100%"}.items() <= result_rows(rows)[-1].items()
    assert "Near@1000" in report([run], out=tmp_path / "page.html").read_text()
    print_names(list_names("measures"))
    assert "near@{}\n    Share of the items that are as near" in capsys.readouterr().out
    assert evaluate(run, data=data, measures=["near@7"], progress=False)["rows"]["raw"].keys() == {"near@7"}


@pytest.mark.parametrize("wrong", [0, slice(None)])
def test_one_that_gives_no_numbers_is_left_out_and_told(wrong, tmp_path: Path) -> None:
    @measure("Broken", group="geometry", better="higher", unit="share of test items", pattern="{:.0%}", usual=False)
    def broken(subject):
        """No number of some items."""
        found = torch.ones(len(subject.test_x))
        found[wrong] = torch.nan
        return found.numpy()

    try:
        run = make_run(tmp_path / "run", vector_model(), data="<vectors>")
        data = (vectors(60, 3), vectors(40, 3))
        result = evaluate(run, data=data, measures=["broken", "uniformity"], progress=False)
        assert all(set(row) == {"uniformity"} for row in result["rows"].values())
        assert result["not_measured"] == ["Left out, as NaN or infinity came out: Broken."]
        assert set(result["not_measured"]) <= set(result["notes"])
        assert "NaN or infinity came out: Broken." in report([run], out=tmp_path / "page.html").read_text()
    finally:
        del METRICS["broken"]


def test_what_its_subject_lacks_is_told(mine, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", vector_model(), data="<vectors>")
    result = evaluate(run, data=(vectors(60, None), vectors(40, None)), measures=["near@2"], progress=False)
    assert result["rows"] == {"raw": {}, "untrained": {}, "trained": {}}
    assert "Not measured, as there are no labels: Near@2." in result["notes"]


def test_names_choose(mine) -> None:
    keys = [row.key for row in chosen(["near@3", "uniformity", "near"])]
    assert keys == ["uniformity", "near@1", "near@3", "near@1000"]
    assert all(row.usual for row in chosen())
    assert {row.group for row in chosen(["geometry"])} == {"geometry"}
    assert {row.key for row in chosen(["all"])} >= {"knn", "near@1000"}
    for typo in ("near@", "near@0", "near@x", "knn@3", "kn"):
        assert metric_by_key(typo) is None
        with pytest.raises(UsageError, match="measures: unknown name"):
            chosen([typo])
    with pytest.raises(UsageError, match=r"as in measures=\['knn', 'recall@1'\], got"):
        chosen(["knn, recall@1"])
    with use_flag_style(), pytest.raises(UsageError, match="as in --measures knn recall@1, got"):
        chosen(["knn, recall@1"])


def test_a_measure_has_one_name_on_the_page_in_options_and_in_results() -> None:
    """A title is the key in another writing, by which it is chosen too."""
    for row in chosen(["all"]):
        assert row.title.lower().replace(" ", "_").replace("-", "_") == row.key
        assert [one.key for one in chosen([row.title])] == [row.key]
    assert [row.title for row in chosen(["retrieval"])][:3] == ["Recall@1", "Recall@5", "Recall@10"]
    assert chosen(["Zero-shot"]) == chosen(["zero_shot"])


def test_a_row_that_says_too_little_is_told() -> None:
    def undocumented(subject):
        return 0.0

    common = {"group": "geometry", "better": "higher", "unit": "", "pattern": "{}"}
    with pytest.raises(UsageError, match="no docstring"):
        measure("Mine", **common)(undocumented)
    undocumented.__doc__ = "Nothing."
    with pytest.raises(UsageError, match=r"expected its name as the title, 'Undocumented', got 'Mine'"):
        measure("Mine", **common)(undocumented)
    with pytest.raises(UsageError, match=r"expected its name as the title, 'Undocumented@\{\}', got 'Undocumented'"):
        measure("Undocumented", numbers=(1, 2), **common)(undocumented)
    undocumented.__name__ = "knn"
    with pytest.raises(UsageError, match="is a measure 'knn' already"):
        measure("Mine", **common)(undocumented)


def test_the_registry_is_known_without_torch() -> None:
    code = "import sys; from contraport.metrics import metric_by_key; assert metric_by_key('knn')\n"
    code += "assert not {'torch', 'numpy', 'sklearn'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
