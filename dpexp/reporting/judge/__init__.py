"""Judge the paper's claims and published values by the measured values.

`sides` reads the two sides of a comparison from cells, `errors` estimates their difference and its
error, `claims` judges each claim, `verdict` summarises the artifact.
"""
