"""Is this machine, and every node of a cluster, fit for a run: `evr1 doctor`."""
