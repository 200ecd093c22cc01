"""A rank: a long-running Dask task that trains when the driver says so."""
