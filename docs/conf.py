"""Settings of Sphinx. Everything is built from this repository: no page is fetched to link to."""

from accelerando import __version__

project = "accelerando"
copyright = "the accelerando developers"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # numpydoc sections say the types in words
napoleon_google_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = "accelerando"
