"""Time and weigh one step of every method beside the non-private step and the peers."""
