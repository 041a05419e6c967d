"""Quarantine: a frame that no task can write is kept byte for byte, and the messages after it are written.

`poison_search` narrows a failure down to one frame, `worker_probe` sees that the workers are not the cause,
and `quarantine` keeps the frame, or copies it from one table of a topic to the other.
"""
