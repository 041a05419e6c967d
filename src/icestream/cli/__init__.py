"""The command line: `main` finds a command in the module of its name and imports it when it runs."""
