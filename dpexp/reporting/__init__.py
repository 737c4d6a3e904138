"""Published values beside measured ones: tables and figures built from run records.

`schema` says what an artifact is, `collect` turns run records into its values, `judge` compares
them with what the paper says, `render` writes them. Imports go in that order: `render` may import
the others, `schema` none of them. Nothing here trains: runs are made by a callable.
"""
