"""Training on a Dask cluster: the driver, the ranks, and the messages between them."""
