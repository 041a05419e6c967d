"""The broker's doors: how the outside reaches the storage. They translate and bound; they decide nothing.

`flight` is the native door (docs/protocol.md), `http` the one for people, scripts and monitoring (docs/http.md).
"""
