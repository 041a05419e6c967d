"""The metadata store on etcd's v3 gRPC API.

It keeps what `icestream.metadata` promises, and:

* A call is repeated, on one endpoint after another, until it is answered or its time is up; then it raises a retryable
  error. Reads, plain puts and deletes may be repeated. A transaction with conditions may not: each carries a ticket, by
  which a lost answer is found out (`tickets`). So it happens once or not at all, also when members die under it. Only
  where etcd stays silent until the time is up, the error is OutcomeUnknownError: read, and decide anew.
* A watch outlives connections and members. It goes on behind the last change it handed out, and holds one message of
  the stream at a time: whoever does not read stops etcd from sending.
* Leases last whole seconds, at least what etcd grants at least (2 s with its usual settings), and begin anew when the
  leader changes. Keys of an ended lease vanish when etcd has noticed, up to a second later.

`calls` are the remote calls, `messages` (generated) what they carry; `endpoints` connects, `tokens` lets us in,
`client` repeats, `errors` says which failure is what; `keyspace` translates; `tickets`, `leases`, `pages`, `watch` and
`store` are the store.

Nothing is imported here: gRPC's library takes time and memory that a broker without etcd need not spend.
"""
