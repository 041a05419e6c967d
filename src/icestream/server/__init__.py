"""The broker's doors: how clients reach the storage. They translate, limit and authorize; they hold no other logic.

- Every call has a rule in `access`, one table for all doors. A call without a rule needs full access.
- Every request is bounded in size, and every stream in what it buffers. A slow client slows only itself.
- Every error has a code, a message, the operation, the place, a remedy, and whether a retry can help.

`flight` is the native protocol (docs/protocol.md), `http` serves people, scripts and monitoring (docs/http.md), `otlp`
takes OpenTelemetry (docs/telemetry.md), `metrics` is for Prometheus. What travels is defined in `icestream.protocol`.
"""
