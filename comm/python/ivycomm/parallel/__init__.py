"""Tools for training on many ranks in addition to collectives. Each module needs its own framework."""
