"""What the values say about the paper's claims, and about its published values.

`sides` takes the two sides of a comparison from cells, `errors` estimates their difference and its
error, `claims` judges each claim, `verdict` sums up the artifact.
"""
