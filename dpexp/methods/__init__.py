"""One file a method; each reads like its algorithm box."""
