"""Running the service: processes, the worker, and the commands that start them."""
