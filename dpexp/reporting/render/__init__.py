"""Tables and figures as files.

`table` holds everything that is shown. `markdown`, `csv_files` and `latex` write it as text,
`figure` draws it by `points`, `curves` or `maps` and `layout` adds the text around the panels,
`exports` saves the files, `page` collects all artifacts on one page.
"""
