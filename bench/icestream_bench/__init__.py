"""Measures an installation: what icestream does, beside what the same hardware does without it, in the same run.

Floors and measurements take turns in short rounds, so that noise of the machine meets both alike.
"""
