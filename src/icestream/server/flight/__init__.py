"""The Flight door: Arrow Flight, as `docs/protocol.md` describes it."""
