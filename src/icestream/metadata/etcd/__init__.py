"""The metadata store on etcd's v3 gRPC API.

Guarantees, besides those of `icestream.metadata`:

* A call is repeated, on one endpoint after another, until etcd responds or the time is up. Then it raises a retryable
  error. Reads, plain puts and deletes may be repeated. A transaction with conditions may not: it uses a guard, which
  tells whether it happened if its response is lost (`transactions`). So it happens once or not at all, also if members
  die. Only if etcd does not respond until the time is up, the error is `OutcomeUnknownError`: read, and decide again.
* A watch survives the loss of connections and members. It continues after the last change that it returned. It holds
  one message of the stream at a time: if the watch is not read, etcd stops sending.
* Leases last whole seconds, at least etcd's minimum (2 s with its usual settings), and restart when the leader changes.
  Keys of an ended lease are deleted when etcd notices, up to a second later.

`client` makes calls and repeats them, `messages` (generated) has the wire messages, `keyspace` translates keys, and
`transactions`, `leases`, `watch` and `store` implement the store.

This file imports nothing: gRPC costs time and memory that a broker without etcd need not spend.
"""
