"""The schema of an artifact, one YAML file `conf/artifact/<paper>/<name>.yaml`.

`artifact` holds the types, `spec` reads the file, `validate` checks it, `tuned` reads the settings
chosen for its cells.
"""
