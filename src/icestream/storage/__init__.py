"""All topics of a data directory, behind one facade that needs no server.

What it guarantees
------------------
* One process at a time opens a data directory (`.lock`). Of several brokers that share a metadata store, one takes a
  topic's messages: the topic's record names its log, from the first publish on, by compare-and-swap.
* A publish is acknowledged at the requested level: in memory, synced to the disk, or in a committed snapshot of the
  table as the catalog shows it. What a pipeline reports about itself is never believed.
* An offset that any message may have had is never given to another one, also after a lost disk.
* The log and the cloud give up only what was read back from where it stays: the table, the cloud, or both.
* A deleted topic is gone at once, and its name is free when its log, table and objects are removed. A crash in between
  is finished at the next start. A log without a record is adopted, never deleted.
* An object store or a catalog that cannot be reached delays uploads, commits and retention. It never delays a publish
  at the levels `memory` and `disk`.

On disk: `{wal.dir}/{namespace}/{topic}/` is a topic's log (see `icestream.wal`), `{wal.dir}/.lock` the lock. In the
metadata store: one record a topic (`record`), the cloud objects' records (`cloud`), the subscriptions' progress.

Files: `facade` opens everything in order; `topics` has the records and opens logs; `topic` is one topic; `publishing`,
`subscribing` and `read_only` are its uses; `backlog` lists what waits for the pipeline; `table_watch` reads committed
offsets; `retention`, `disk` and `housekeeping` work in the background; `cloud/` uploads and recovers; `verify/` audits.

```python
with IcebergStorage(load_settings(overrides={"data_dir": "data"})) as storage:
    topic = storage.topics.create("default/orders", if_not_exists=True)
    first = storage.publish(topic, message_batch([b"one", b"two"])).base_offset  # durable now
    for batch in topic.read(topic.reader(StartPosition.offset(first))):
        ...
```
"""

from icestream.model.enums import AckLevel
from icestream.model.offsets import StartPosition
from icestream.reader import TopicReader
from icestream.storage.cloud.admin import cloud_objects, flush_topic, recover_topic, recoverable_topics
from icestream.storage.facade import IcebergStorage, open_existing_store, open_store
from icestream.storage.housekeeping import seconds_ahead
from icestream.storage.logs import LOCK_FILE, exclusive_directory
from icestream.storage.pipeline_figures import PipelineFigures
from icestream.storage.publishing import ByteBudget, PublishItem
from icestream.storage.read_only import ReadOnlyStorage
from icestream.storage.record import TopicRecord, topic_schema
from icestream.storage.stats import table_figures, topic_stats, upload_figures
from icestream.storage.tenant_figures import OTHER_TENANT, TenantFigures
from icestream.storage.topic import Topic
from icestream.storage.topics import stored_records

__all__ = [
    "LOCK_FILE",
    "OTHER_TENANT",
    "AckLevel",
    "ByteBudget",
    "IcebergStorage",
    "PipelineFigures",
    "PublishItem",
    "ReadOnlyStorage",
    "StartPosition",
    "TenantFigures",
    "Topic",
    "TopicReader",
    "TopicRecord",
    "cloud_objects",
    "exclusive_directory",
    "flush_topic",
    "open_existing_store",
    "open_store",
    "recover_topic",
    "recoverable_topics",
    "seconds_ahead",
    "stored_records",
    "table_figures",
    "topic_schema",
    "topic_stats",
    "upload_figures",
]
