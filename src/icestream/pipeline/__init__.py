"""The Spark pipeline: writes durable messages from the broker's logs into the topics' Iceberg tables.

Guarantees:

- Each acknowledged message is in its table exactly once, whatever is killed and however many pipelines run. A table
  and its ledger (the committed offset, in the table's properties) change in one catalog commit.
- A pipeline keeps no state of its own. It can be killed at any step, run twice, or moved to another machine: the
  ledgers say where the next one begins. Files that a killed pipeline left are in no table; maintenance removes them.
- A topic that fails waits, longer each time, and holds up no other topic. A frame that no task can write is put into
  quarantine byte for byte, and the topic goes on after it.
- A broker that is unreachable, and has a cloud tier, is replaced by its cloud objects until it is back.

On disk there is nothing but a log file of each child process in the broker's data directory, and the cache folder
(`spark.cache`) with jars and Java's class archive.

Run a pipeline until everything durable is in the tables:

    with Client("grpc://127.0.0.1:8815") as client, Spark(settings) as spark:
        with Runner(settings, client, Tables(settings), spark) as runner:
            figures = runner.drain(threading.Event())

Modules: `driver` is the loop; `planner` decides what a pass writes; `one_pass` runs a pass and commits; `tasks` runs in
Spark's workers; `state` is what the driver remembers; `sources` is where messages come from; `quarantine`,
`maintenance` and `spark` are packages; `supervisor` runs a pipeline as the broker's child.
"""

from icestream.pipeline.report import PassFigures

__all__ = [
    "PassFigures",
]
