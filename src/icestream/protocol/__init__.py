"""What client and broker send to each other (docs/protocol.md): each message is one msgspec struct.

Both sides use the same types. A request refuses fields that it does not know; a response may have more fields than a
client knows, because a newer broker may add some. Names on the wire are a promise and do not change.

    publish    batches, lone messages and their acknowledgements
    read       tickets of reads, and frames as rows
    subscribe  subscriptions and the messages of a consumer's stream
    admin      topics, figures, the cloud
    pipeline   what the pipeline asks and reports
    parsing    how a request becomes a struct, and what an error says
"""
