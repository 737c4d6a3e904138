"""Tables and figures of measured and published values, built from run records.

`schema` defines an artifact, `collect` computes its values from run records, `judge` compares them
with the paper, `render` writes them. Imports go in that order: `render` may import the others,
`schema` none of them. Nothing here trains: a callable executes runs.
"""
