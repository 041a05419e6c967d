"""Topics in the cloud: what `icestream.cloud` can do, joined with logs and the metadata store.

`topic_cloud` is a topic's part in it and what all topics share, `registry` the records in the metadata store.

Uploads: `uploading` has the threads and decides which topic is next, `topic_uploads` when a topic is due and how its
uploads went, `reservation` keeps offsets reserved, `log_source` is a log as `icestream.cloud.uploader` sees it.
"""

from icestream.storage.cloud.registry import MetadataRegistry
from icestream.storage.cloud.topic_cloud import Cloud, TopicCloud

__all__ = ["Cloud", "MetadataRegistry", "TopicCloud"]
