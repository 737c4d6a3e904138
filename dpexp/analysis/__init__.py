"""What looks at a run's private gradients as it goes; the run's certificate says so."""
