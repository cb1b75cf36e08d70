"""What is asked: questions, where they come from, and the facts of the bundled default."""
