"""One file a command: its options as a dataclass, which is its help, and `main(options)`, which does the work."""
