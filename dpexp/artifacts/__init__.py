"""Published values beside measured ones: tables and figures built from run records.

An artifact is one YAML file, `conf/artifact/<paper>/<name>.yaml`, in `words`' words. `spec` reads
it, `cells` turns it into runs, `collect` finds their records and what `readings` they hold, `build`
runs the missing ones through a callable, `claims` judges what the paper says of the values,
`verdict` the whole, `plan` tells the cost beforehand, `table` holds what is shown, `figure` draws
it by `points`, `curves` or `maps`, `exports` writes it. Nothing here trains.
"""
