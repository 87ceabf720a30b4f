"""The core of evr1: nouns, extension points and the loops over them. It knows no plugin by name."""

__version__ = "0.1.0"
