"""Pages that take answers, and the servers behind them: labelling, and the review of a reference standard."""
