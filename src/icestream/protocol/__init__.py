"""What client and broker say to each other: each message is a type that both sides use."""
