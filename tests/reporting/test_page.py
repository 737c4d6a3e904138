"""The page: every artifact, its values, claims and links, and no word from elsewhere."""

import re
from dataclasses import replace
from html.parser import HTMLParser

from dpexp.reporting.render import exports, page
from tests.reporting.shown import edit

VOID = {"meta", "br", "img", "input"}


class Reader(HTMLParser):
    """Checks that tags nest, and keeps the links and the text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.links, self.words = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.links += [value for name, value in attributes if name in ("href", "src")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def written(make, lab, profile="embedded"):
    tables = [make(profile, name=name) for name in ("table9", "figure4")]
    for table in tables:
        exports.write(table, lab.results)
    entries = [page.Entry(table, ("plain", "better"), ("small",)) for table in tables]
    path = page.write(entries, lab.results, profile)
    assert path == lab.results / profile / "index.html"
    return path, Reader(path.read_text(encoding="utf-8"))


def test_every_link_leads_to_a_file_beside_the_page_and_none_elsewhere(make, lab):
    path, reader = written(make, lab)
    assert len(reader.links) > 20
    for link in reader.links:
        if link.startswith("#"):
            assert f'id="{link[1:]}"' in path.read_text()
        else:
            assert (path.parent / link).exists(), link
    assert not re.search(r"https?:|//cdn", path.read_text())


def test_the_papers_multiplier_and_spread_stand_beside_ours(make, conf, lab):
    edit(conf, "table9", ("{value: 50.0, place", "{value: 50.0, std: 0.25, place"))
    shown = make(name="table9")
    values = {key: replace(value, papers_multiplier=1.75) for key, value in shown.values.items()}
    exports.write(shown, lab.results)
    entries = [page.Entry(replace(shown, values=values), ("plain", "better"), ("small",))]
    text = page.write(entries, lab.results, "embedded").read_text(encoding="utf-8")
    assert (
        '<th scope="col">Noise multiplier</th><th scope="col">By the paper&#39;s accountant</th>'
        in text
    )
    assert "<td>1.750</td>" in text
    assert '<span class="published">paper 50.0 ± 0.25</span>' in text


def test_cells_show_measured_published_and_their_difference_by_size(make, lab):
    path, reader = written(make, lab)
    text = path.read_text()
    assert "Plain_1" in text and "small (for Big)" in text
    # 61 measured, 60 published; 66 to 70 is further than three points.
    assert '<span class="d close ">+1.0</span>' in text
    assert '<span class="published">paper 70.0</span>' in text
    assert '<span class="d below far">' in text or '<span class="d above far">' in text
    assert "not comparable" in " ".join(reader.words)
    assert '<span class="badge unclear">' in text


def test_the_paper_profile_counts_cells_by_size_and_warns_of_nothing(make, lab):
    _, reader = written(make, lab, "paper")
    words = " ".join(reader.words)
    assert "within 1 point of the published value" in words
    assert "not comparable" not in words


def test_what_a_reader_filters_by_is_on_every_article(make, lab):
    path, _ = written(make, lab)
    articles = re.findall(r"<article [^>]*>", path.read_text())
    assert len(articles) == 2
    for article in articles:
        assert 'data-papers="demo"' in article and 'data-methods="plain better"' in article
        assert "better above plain" in article


def test_the_page_leads_to_the_other_profiles_the_audit_and_the_attacks_that_are_there(make, lab):
    written(make, lab, "paper")
    folder = lab.results / "embedded"
    (folder / "lira").mkdir(parents=True)
    for name in ("audit.md", "lira/odd name.md"):
        (folder / name).write_text("", encoding="utf-8")
    _, reader = written(make, lab)
    beside = [link for link in reader.links if link in ("../paper/index.html", "audit.md")]
    assert beside == ["../paper/index.html", "audit.md"]
    assert "lira/odd%20name.md" in reader.links
    assert not any("quick" in link for link in reader.links)
