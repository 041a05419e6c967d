"""`icestream bench`: measures an installation, and the floor of the same hardware in the same run.

Floors and measurements alternate in short rounds, so that noise of the machine affects both alike.
"""
