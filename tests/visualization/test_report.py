"""The report of an evaluation has every figure that was measured."""

import re

from captioner.visualization import report_page


def test_the_report_has_its_tables_as_text() -> None:
    tables = [
        ("Scores", ["", "score"], [["CIDEr", "0.611"], ["<b>", "not computed"]]),
        ("Captions", ["", ""], [["num captions", "7"]]),
    ]
    page = report_page(tables, {}, title="a <report>")
    assert re.findall("<h2>(.*?)</h2>", page) == ["Scores", "Captions"]
    assert '<th scope="row">CIDEr</th><td>0.611</td>' in page
    assert "&lt;b&gt;" in page
    assert "a &lt;report&gt;" in page
    assert page.count("<thead>") == 1, "columns without names have no heading"
