"""The socket door: small messages with little around them, a thread for each connection."""
