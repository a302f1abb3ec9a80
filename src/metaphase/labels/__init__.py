"""From PHH3 slides and people's answers to labelled H&E slides, and to what networks learn from."""
