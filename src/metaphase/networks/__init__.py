"""The architectures of the paper with their numbers, and how trained networks are stored."""
