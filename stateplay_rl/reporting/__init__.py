"""The HTML page, its figures and tables: what happened, to look at.

`sources` finds out what a path is, the page builders (`run_page`, `conditions_page`, ...) turn a
directory into `blocks`, and three renderers write the same blocks as inline SVG, PNG and CSV.
"""
