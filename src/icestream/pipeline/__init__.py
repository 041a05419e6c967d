"""The Spark pipeline, and what it needs from the machine: a Java, and for maintenance Iceberg's jars."""
