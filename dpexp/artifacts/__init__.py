"""Published values beside measured ones: tables built from run records, with no training code.

An artifact is one YAML file, `conf/artifact/<paper>/<name>.yaml`, in `spec`'s words. `cells`
turns it into runs, `collect` finds their records, `build` runs the missing ones through a
callable, `claims` judges what the paper says of the values, `plan` tells the cost beforehand,
`table` writes .md, .csv and .tex.
"""
