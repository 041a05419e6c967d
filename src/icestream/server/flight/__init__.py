"""The native door: Arrow Flight, as `docs/protocol.md` describes it."""
