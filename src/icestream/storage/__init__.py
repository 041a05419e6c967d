"""Topics and what is stored of them, behind one facade that needs no server.

`IcebergStorage` owns every topic of a data directory: their records in the metadata store and their logs. It is what a
broker puts its doors on, and what an embedding program uses directly. One process at a time may open a data directory.

Creating a topic writes its record first and its log at first use. Deleting one marks the record, removes the log, and
removes the record last; what a crash leaves of it is finished at the next start. A log that no record knows of is taken
in again, never deleted.
"""

from icestream.model.enums import AckLevel
from icestream.model.offsets import StartPosition
from icestream.reader import TopicReader
from icestream.storage.facade import IcebergStorage
from icestream.storage.publishing import PublishItem
from icestream.storage.read_only import ReadOnlyStorage
from icestream.storage.record import TopicRecord
from icestream.storage.topic import Topic

__all__ = [
    "AckLevel",
    "IcebergStorage",
    "PublishItem",
    "ReadOnlyStorage",
    "StartPosition",
    "Topic",
    "TopicReader",
    "TopicRecord",
]
