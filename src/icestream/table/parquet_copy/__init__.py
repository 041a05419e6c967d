"""The Parquet copy of a topic: plain files in folders by date and hour, for engines without a catalog."""
