"""Running the service: its processes, the worker, and the commands that start them."""
