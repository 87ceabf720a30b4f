"""Evaluation: benchmarks, the streaming pipeline, the result store, statistics."""

from evr1_core.evaluate.benchmark import Benchmark, Record, Report, accuracy, aggregate, table
from evr1_core.evaluate.statistics import Figure, figure

__all__ = ["Benchmark", "Figure", "Record", "Report", "accuracy", "aggregate", "figure", "table"]
