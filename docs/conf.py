"""How `make docs` makes a site of these documents."""

project = "Lockstep"
copyright = "the Lockstep authors"
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
myst_heading_anchors = 4
# Pygments does not know a backslash within a quoted name; the statements themselves are tested.
suppress_warnings = ["misc.highlighting_failure"]
html_theme = "furo"
html_title = "Lockstep"
html_copy_source = False
html_show_sphinx = False
