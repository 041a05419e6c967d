"""Commands that show telemetry: `icestream trace` and `icestream logs`."""
