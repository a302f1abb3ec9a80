"""Pages for people: reports of slides, the index of a cohort, labelling. Each part is imported on its own."""
