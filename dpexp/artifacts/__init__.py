"""Published values beside measured ones: tables and figures built from run records.

An artifact is one YAML file, `conf/artifact/<paper>/<name>.yaml`, in `spec`'s words. `cells`
turns it into runs, `collect` finds their records, `build` runs the missing ones through a
callable, `claims` judges what the paper says of the values, `plan` tells the cost beforehand,
`table` holds what is shown, `figure` draws it, `exports` writes it. Nothing here trains.
"""
