"""Topics in the cloud: what `icestream.cloud` can do, joined with logs and the metadata store.

`topic_cloud` is a topic's part in it and what all topics share, `registry` the records in the metadata store.
"""

from icestream.storage.cloud.registry import MetadataRegistry
from icestream.storage.cloud.topic_cloud import Cloud, TopicCloud

__all__ = ["Cloud", "MetadataRegistry", "TopicCloud"]
