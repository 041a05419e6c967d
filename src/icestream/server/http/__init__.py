"""The HTTP door: health, metrics, topics and messages for programs without the client (docs/http.md).

`http_app` is the application, `HttpDoor` runs it. Routes and the OpenAPI document are made from the same operations
(`requests`, `openapi`), bodies from the structs of `icestream.protocol` and `models`, so they cannot disagree.

- The event loop never blocks: what touches the storage runs on a bounded number of threads, and a reader that waits for
  messages holds none.
- Every request is bounded in size, in parsed values and in time; every response in messages and bytes.
- Every error is the same JSON object with a fitting status (`errors`).
"""

from icestream.server.http.app import http_app
from icestream.server.http.door import HttpDoor

__all__ = ["HttpDoor", "http_app"]
