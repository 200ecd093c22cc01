"""Training data as feeds: each cuts an epoch into batches of any requested size."""
