"""What a run gives away, measured: membership inference and lower bounds on epsilon."""
