"""The terms that every other package uses: names, errors, messages, frames, filters, offsets, closed sets.

Guarantees:

* A `TopicName` that was parsed is safe as a path, a table identifier and a metadata key.
* Every error that icestream raises on purpose is an `IcestreamError` with operation, place, remedy and `retryable`. It
  crosses the wire as a dictionary and arrives as the same class.
* The columns of a message and of its envelope are defined once, in `messages`. Other modules use these names.
* Only `messages` decodes the body of a frame. All code between a producer and a reader moves it as opaque bytes.
* A decoded frame is complete, incomplete or corrupt, and nothing else. Its checksum is valid only at its own position.
* Nothing here reads files, the network or the environment.

`names`, `errors`, `enums`, `offsets`, `callers`, `clock` and `units` need only the standard library. `messages`,
`json_rows` and `filters` need Arrow; with them the light client works. `frames` and `quarantine` need xxhash.
`filter_parser` needs sqlglot, and is loaded with the first filter.
"""
