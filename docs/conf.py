"""How the documentation is built."""

project = "icestream"
author = "the icestream developers"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "icestream"
myst_heading_anchors = 3
exclude_patterns = ["_build"]
suppress_warnings = ["myst.xref_missing"]
