"""A link that leads nowhere is found on the finished site, and what a page would fetch."""

import re

import pytest

from docs._ext import blocks, contents, gallery, links, records
from docs._ext.markdown import docstring, escaped


def site(folder, **pages):
    for name, text in {"b": '<p id="here">', **pages}.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    links._anchors.cache_clear()
    return links.broken(folder)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('<a class="x" href="b.html#there">', "a.html: b.html#there leads nowhere"),
        ('<a href="c.html">', "a.html: c.html leads nowhere"),
        ("<a href='#top'>", "a.html: #top leads nowhere"),
        ('<img alt="" src="no.png">', "a.html: no.png leads nowhere"),
        ('<a href="../b.html">', "a.html: ../b.html leads nowhere"),
        ('<script src="https://cdn.org/x.js"></script>', "a.html: fetches"),
        ('<link rel="stylesheet" href="//fonts.org/x">', "a.html: fetches"),
    ],
)
def test_what_leads_nowhere_is_named(tmp_path, text, said):
    (line, *_) = site(tmp_path, a=text)
    assert line.startswith(said)


def test_what_leads_somewhere_is_not(tmp_path):
    good = (
        '<a href="b.html#here">b</a> <a href="https://x.org">x</a> <b id="t"></b><a href="#t">t</a>'
    )
    (tmp_path / "p q.png").write_bytes(b"")
    assert site(tmp_path, a=good + '<img src="p%20q.png?1">') == []


def test_a_block_that_means_nothing_is_refused():
    with pytest.raises(Exception, match="got generated: galery"):
        blocks.generated("<!-- generated: galery -->")


def test_the_menu_has_every_page_once_by_the_pages_own_title():
    page = contents.page()
    names = re.findall(r"^[\w/]+$", page, re.M)
    docs = contents.DOCS
    paths = [*docs.glob("*.md"), *docs.glob("*/index.md")]
    there = [path.relative_to(docs).with_suffix("").as_posix() for path in paths]
    assert sorted([*names, "index"]) == sorted(there)
    # Sphinx shows NAME by its page's heading, and TITLE <NAME> by another title.
    assert not re.findall(r"^.+<.+>$", page, re.M)
    assert all(path.read_text(encoding="utf-8").startswith("# ") for path in paths)


def test_a_folders_first_page_brings_the_others():
    text = contents.of_folder("docs/methods/index", "# Methods\n")
    assert "\nrgp_core\n" in text and "\nindex\n" not in text
    assert contents.of_folder("docs/methods/rgp", "x") == "x"


def test_the_gallery_has_every_artifact_with_the_verdict_of_each_profiles_page():
    page = gallery.page()
    assert page.count('<section class="card"') == len(records.artifacts()) > 30
    for made in records.built():
        key = f"{made.artifact.paper}-{made.artifact.name}"
        card = page.partition(f'id="{key}"')[2].partition("</section>")[0]
        assert f"results/{made.profile}/index.html#{key}" in card
        text = made.path.read_text(encoding="utf-8")
        if "**Verdict**: " in text:
            verdict = text.partition("**Verdict**: ")[2].partition("\n")[0]
            assert verdict in card
            words = card.partition('data-verdict="')[2].partition('"')[0].split("|")
            assert ("holds" in words) >= (" hold" in verdict.replace("not hold", ""))
            assert ("does not hold" in words) >= ("not hold" in verdict)


def test_text_is_shown_as_it_stands():
    assert escaped("a_b *c* `x_y` [z] |w|") == r"a\_b \*c\* `x_y` \[z\] \|w\|"
    assert escaped("a ` b_c") == r"a \` b\_c"


def test_a_docstring_is_split_at_its_differences():
    text = "Head.\n\nFor each W:\n\n    L <- W\n    R\n\n"
    text += "Points.\n\n- One: a\n  b - c.\n- Two.\n\nEnd.\n\n"
    text += "Differences from the paper:\n 1. This\n    one.\n 2. That.\n"
    head, body, differences = docstring(text)
    assert head == "Head." and differences == "1. This one.\n2. That."
    assert "```text\nL <- W\nR\n```" in body
    assert "Points.\n\n- One: a b - c.\n- Two.\n\nEnd." in body
