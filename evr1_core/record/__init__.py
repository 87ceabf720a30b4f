"""What a run leaves: manifest, metrics, rollouts, events; and the trackers that get the metrics too."""

from evr1_core.record.tracker import Tracker

__all__ = ["Tracker"]
