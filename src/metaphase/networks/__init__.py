"""Model cards, architectures, the training loop, and the engine that searches slides."""
