"""The words of icestream: names, messages, frames, positions and errors. Depends on nothing above Arrow."""
