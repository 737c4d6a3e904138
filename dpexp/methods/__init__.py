"""One file per method; each follows its algorithm box."""
