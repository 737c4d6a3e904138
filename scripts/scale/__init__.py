"""What a private step costs on many GPUs, on paper."""
