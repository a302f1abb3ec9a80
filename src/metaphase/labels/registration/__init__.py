"""From PHH3 to H&E: one global similarity, a smooth local field, and a checked shift for each point."""
