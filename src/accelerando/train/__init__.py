"""The engine behind the estimators: loop, data, state and what the machine needs."""
