"""SQL over topics: each topic is a table `namespace.name`, its newest messages included.

What it guarantees
------------------
* A query sees each topic up to one offset, taken when the query begins: the durable end, or the committed offset if
  the caller asks for committed rows only. Every scan of the topic in the query ends at that offset.
* Rows that the table holds are read from the table: only the columns needed, only the files that can match. The other
  rows are read through the topic's other tiers. The tier of a row never changes a result.
* A query reads topics and nothing else: one SELECT, no files, no network, no settings, no Python, no functions except
  those that compute. A statement that is not known to be harmless is refused before it runs.
* Time, memory and the number of concurrent queries are bounded. Results are streams, computed while they are read. A
  query ends when its caller disconnects.

How it works
------------
The engine is DuckDB, with an in-memory database of its own for each query::

    engine      runs a bounded number of queries
    statement   parses the text: one SELECT, and the tables in it
    session     the isolated DuckDB database of a query, its deadline, its errors
    dataset     a topic as DuckDB scans it
    pushdown    conditions of a scan that the reader can use to read less
    topics      where a topic's rows come from: a broker's storage, or a catalog alone

Example::

    engine = QueryEngine(settings.query, BrokerTopics(storage))
    with engine.run("SELECT count(*) FROM default.events") as query:
        for batch in query.batches():
            ...
"""

from icestream.query.engine import Query, QueryEngine
from icestream.query.topics import BrokerTopics, CatalogTopics

__all__ = ["BrokerTopics", "CatalogTopics", "Query", "QueryEngine"]
