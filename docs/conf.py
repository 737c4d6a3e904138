"""The site: `make docs` builds it from docs, conf and results into build/docs, without a network.

Its source is the checkout itself, so that links between pages, and from pages to results and code,
are the same here and there.
"""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

project = "dpexp"
author = "The dpexp contributors"
copyright = author
release = version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

root_doc = "docs/index"
include_patterns = [
    *("docs/**.md", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"),
    *("results/bench/*.md", "results/*/audit.md", "results/*/lira/*.md"),
]
extensions = [
    *("myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"),
    *("docs._ext.blocks", "docs._ext.docstrings", "docs._ext.files", "docs._ext.links"),
]
myst_enable_extensions = ["deflist", "linkify"]
myst_linkify_fuzzy_links = False  # run.py and README.md are no addresses
myst_heading_anchors = 4
smartquotes = False  # words of commands stay as they are typed
highlight_language = "none"  # of indented blocks, which hold commands as well as what they print
default_role = "code"  # docstrings quote with single backticks

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = "dpexp"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["gallery.js"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {"sidebar_hide_name": False, "footer_icons": []}
copybutton_exclude = ".linenos, .gp, .go"
