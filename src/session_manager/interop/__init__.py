"""Other systems: what of theirs is brought in, and taken back."""
