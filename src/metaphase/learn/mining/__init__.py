"""The H&E detector's training data: candidates, easy and difficult sets, soft targets."""
