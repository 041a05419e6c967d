"""What `trace` and `logs` share: tenant options, trace ids, severities, SQL literals."""

import contextlib
import re
from collections.abc import Callable, Iterator

import click

from icestream.model.errors import InvalidNameError, TopicNotFoundError
from icestream.model.names import TopicName, check_part

_TRACE_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?", re.ASCII)


def _name_callback(what: str) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    def check(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
        try:
            return None if value is None else check_part(value, what=what)
        except InvalidNameError as error:
            raise click.BadParameter(f"{error.message}; {error.remedy}") from None

    return check


tenant_option = click.option(
    "--tenant", required=True, metavar="T", callback=_name_callback("tenant"), help="The tenant."
)
dataset_option = click.option(
    "--dataset", metavar="D", callback=_name_callback("dataset"), help="The tenant's dataset.  [default: none]"
)


def telemetry_topic(tenant: str, dataset: str | None, signal: str) -> TopicName:
    """`acme/traces`, or with a dataset `acme/prod_traces`."""
    return TopicName.parse(f"{tenant}/{signal if dataset is None else f'{dataset}_{signal}'}")


@contextlib.contextmanager
def naming_tenant(tenant: str) -> Iterator[None]:
    """Replace the remedy of a missing topic: a sender creates telemetry topics, not the user of this command."""
    try:
        yield
    except TopicNotFoundError as error:
        error.remedy = f"check the tenant's name; for {tenant} no such telemetry has arrived yet"
        raise


def parse_trace_id(_ctx: click.Context, _param: click.Parameter, value: str | None) -> bytes | None:
    """Parse 32 hexadecimal digits, with or without dashes, or the value of a `traceparent` header."""
    if value is None:
        return None
    text = value.strip().lower()
    header = _TRACEPARENT.fullmatch(text)
    digits = header[1] if header else text.replace("-", "")
    if not _TRACE_ID.fullmatch(digits):
        raise click.BadParameter(f"{value!r:.80} is no trace id: give 32 hexadecimal digits, or a traceparent")
    found = bytes.fromhex(digits)
    if not any(found):
        raise click.BadParameter("a trace id of zeros means no trace")
    return found


# Severities of log records: OTLP's numbers, in ranges of four, and the texts of senders without numbers

RANGES = {"trace": 1, "debug": 5, "info": 9, "warn": 13, "error": 17, "fatal": 21}
"""The first number of each range."""
_SIZE = 4
_TEXTS = {
    "trace": ("trace",),
    "debug": ("debug",),
    "info": ("info", "notice"),
    "warn": ("warn",),
    "error": ("err",),
    "fatal": ("fatal", "crit", "alert", "emerg", "panic"),
}
"""How the usual texts of each begin: `WARNING`, `err`, `CRITICAL`."""


def severity_text(number: int, text: str) -> str:
    """Return the sender's text, else OTLP's name of the number (`INFO`, `INFO2`), else a dash."""
    if text:
        return text
    for name, first in reversed(RANGES.items()):
        if number >= first:
            step = number - first
            return f"{name.upper()}{step + 1 if 0 < step < _SIZE else ''}"
    return "-"


def at_least(severity: str) -> str:
    """Return the SQL condition for this severity and those above, for queries and filters alike."""
    names = list(RANGES)
    begins = [text for name in names[names.index(severity) :] for text in _TEXTS[name]]
    like = " OR ".join(f"severity_text ILIKE '{begin}%'" for begin in begins)
    return f"(severity_number >= {RANGES[severity]} OR (severity_number = 0 AND ({like})))"


def colour_of(severity: str) -> str | None:
    """Return the colour of a severity, as `severity_text` returns it."""
    lowered = severity.lower()
    for name, colour in (("fatal", "red"), ("error", "red"), ("warn", "yellow")):
        if lowered.startswith(_TEXTS[name]):
            return colour
    return None


# Values and names inside SQL text, quoted so that no value can become SQL


def text_literal(text: str) -> str:
    """Quote a text. A quote inside is doubled; a backslash is a plain character."""
    return "'" + text.replace("'", "''") + "'"


def query_bytes(value: bytes) -> str:
    """Write bytes for a query. DuckDB evaluates it once, and passes the bytes to the scan."""
    return f"from_hex('{value.hex()}')"


def filter_bytes(value: bytes) -> str:
    """Write bytes for a reader's filter."""
    return f"x'{value.hex()}'"


def query_time(time_us: int) -> str:
    """Write a time, in microseconds since 1970, for a query."""
    return f"make_timestamptz({time_us})"


def table_name(topic: TopicName) -> str:
    """Quote a topic's name: it may have dashes and dots or be a word of SQL, but has no quotes."""
    return f'"{topic.namespace}"."{topic.name}"'


def check_text(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Refuse an option whose bytes are not UTF-8: they cannot be sent to a broker."""
    if value is not None:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise click.BadParameter("this is not text in UTF-8") from None
    return value
