"""Write tables and figures to files.

`table` holds the data to show. `markdown`, `csv_files` and `latex` write it as text. `figure` draws
it with `points`, `curves` or `maps`, and `layout` adds the text around the panels. `exports` saves
the files, and `page` collects all artifacts on one page.
"""
