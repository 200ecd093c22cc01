"""Training on the workers of a Dask cluster: Dask starts the ranks, PyTorch moves the numbers."""
