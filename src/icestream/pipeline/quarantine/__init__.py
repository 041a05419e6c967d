"""Quarantine: a frame that no task can write is kept byte for byte, and everything after it goes on."""
