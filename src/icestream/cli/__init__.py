"""The command line. Each command is a module of its own, loaded when it is asked for: see `main`."""
