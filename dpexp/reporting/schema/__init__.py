"""What an artifact is: one YAML file, `conf/artifact/<paper>/<name>.yaml`.

`artifact` holds the types, `spec` reads the file, `validate` checks it, `tuned` knows which
settings were chosen for its cells.
"""
