"""The driver: it decides which ranks train (pure), and carries the decisions out on Dask."""
