"""Spark: its session, its Java, its jars and its workers."""
