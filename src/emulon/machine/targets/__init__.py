"""Targets: transformers classes that programs are compiled to."""
