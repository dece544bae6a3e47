"""Sphinx settings for `make docs`: sources are read from the checkout, no network is used."""

from __future__ import annotations

from clusim.base.version import version as clusim_version

project = "clusim"
author = "the clusim authors"
release = clusim_version()
html_title = f"clusim {release}"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
include_patterns = ["*.md", "docs/**"]
exclude_patterns = ["docs/site/root/**", ".*", "build", "tests"]  # not walked
root_doc = "docs/site/index"

myst_heading_anchors = 3
nb_execution_mode = "off"  # tests/notebooks runs them, and `make docs` before this

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
default_role = "code"

# The theme's own fonts are those of the system; no page asks anybody for anything.
html_theme = "furo"
html_extra_path = ["root"]
html_show_copyright = False
html_copy_source = False
html_show_sourcelink = False
