"""A world in one process, the same each time for a seed: servers, networks, clocks and Spark. See ``__main__``."""
