"""What programs that train on many ranks need beside collectives. Each module needs its own framework."""
