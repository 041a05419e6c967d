"""SQL over topics: each topic is a table `namespace.name`, its newest messages included.

What it guarantees
------------------
* A query sees each topic up to one offset, taken when the query begins: the durable end, or, where only what is
  committed is asked for, what the topic's table holds. Every scan of the topic in the query ends there.
* What the table has is read from the table, by column and by the files that can match; the rest is read through the
  topic's other tiers. Which of them has a row never changes a result.
* A query reads topics and nothing else: one SELECT, no files, no network, no settings, no Python, no functions but
  those that compute. What is not known to be harmless is refused before it runs.
* Time, memory and the number of queries are bounded; results are streams, made while they are read. Who goes away
  ends its query.

How it is done
--------------
The engine is DuckDB, in memory, a database of its own for each query::

    quoting         the words that SQL keeps for itself and topics use too: default, offset
    statement       what is asked: one SELECT, by DuckDB's own parser, and the tables in it
    session         a database without any way out, in which topics are views
    topic_dataset   a topic as DuckDB scans it: the columns and conditions of each scan are DuckDB's own choice
    maps            their keys, once each
    expression      what an Arrow expression is made of
    pushdown        conditions that the reader can use to read less
    sources         where a topic's rows come from: a broker's storage, or a catalog alone
    execution       a query that runs: its time, its end, its errors
    engine          all of it together
"""

from icestream.query.engine import Query, QueryEngine
from icestream.query.sources import BrokerTopics, CatalogTopics

__all__ = ["BrokerTopics", "CatalogTopics", "Query", "QueryEngine"]
