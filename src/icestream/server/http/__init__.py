"""The HTTP door: health, metrics, and topics and messages for whoever has no client (docs/http.md).

`http_app` is the application, `HttpDoor` runs it. Routes and the OpenAPI document are made from the same operations
(`operations`), and request and answer bodies from the same models (`models`), so they cannot disagree.

The event loop never blocks: whatever touches the storage runs on a bounded number of threads, and a reader that waits
for messages holds none. Every request is bounded in size, in parsed values and in time, every answer in messages and
bytes. Every failure is the same JSON object with a fitting status (`errors`).
"""

from icestream.server.http.app import http_app
from icestream.server.http.door import HttpDoor

__all__ = ["HttpDoor", "http_app"]
