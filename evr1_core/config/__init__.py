"""The configuration of a run: models, loading with origins, documentation."""
