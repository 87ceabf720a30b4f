"""Whether a run fits: memory of every phase and a rough time per step, from the architecture, the data and the kind of GPU alone."""
