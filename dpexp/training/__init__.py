"""The loop, the private step, and what a run keeps of them."""
