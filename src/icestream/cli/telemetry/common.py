"""What the commands that look at telemetry are told alike: whose it is, and which trace."""

import contextlib
import re
from collections.abc import Callable, Iterator

import click

from icestream.model.errors import InvalidNameError, TopicNotFoundError
from icestream.model.names import TopicName, check_part

TRACE_ID_BYTES = 16
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
    "--tenant", required=True, metavar="T", callback=_name_callback("tenant"), help="Whose telemetry it is."
)
dataset_option = click.option(
    "--dataset", metavar="D", callback=_name_callback("dataset"), help="Of the tenant.  [default: none]"
)


def telemetry_topic(tenant: str, dataset: str | None, signal: str) -> TopicName:
    """`acme/traces`, or with a dataset `acme/prod_traces`."""
    return TopicName.parse(f"{tenant}/{signal if dataset is None else f'{dataset}_{signal}'}")


@contextlib.contextmanager
def naming_tenant(tenant: str) -> Iterator[None]:
    """Topics of telemetry are made by those who send: nobody is told to create one."""
    try:
        yield
    except TopicNotFoundError as error:
        error.remedy = f"nothing of the kind was sent for {tenant} yet, or the name is another"
        raise


def parse_trace_id(_ctx: click.Context, _param: click.Parameter, value: str | None) -> bytes | None:
    """32 hexadecimal digits, in either case and with dashes or without, or a `traceparent` header's value."""
    if value is None:
        return None
    text = value.strip().lower()
    header = _TRACEPARENT.fullmatch(text)
    digits = header[1] if header else text.replace("-", "")
    if not _TRACE_ID.fullmatch(digits):
        raise click.BadParameter(f"{value!r:.80} is no trace id: that is 32 hexadecimal digits, or a traceparent")
    found = bytes.fromhex(digits)
    if not any(found):
        raise click.BadParameter("a trace id of zeros alone means that there is no trace")
    return found


# --------------------
# Severities of log records: OTLP's numbers, in ranges of four, and the texts of those who send no number.


RANGES = {"trace": 1, "debug": 5, "info": 9, "warn": 13, "error": 17, "fatal": 21}
"""Where each range begins."""
_SIZE = 4
_TEXTS = {
    "trace": ("trace",),
    "debug": ("debug",),
    "info": ("info", "notice"),
    "warn": ("warn",),
    "error": ("err",),
    "fatal": ("fatal", "crit", "alert", "emerg", "panic"),
}
"""What the usual texts of each begin with: `WARNING`, `err`, `CRITICAL`."""


def severity_text(number: int, text: str) -> str:
    """What the sender calls it, else OTLP's name of the number: `INFO`, `INFO2`; a dash where nothing is said."""
    if text:
        return text
    for name, first in reversed(RANGES.items()):
        if number >= first:
            place = number - first
            return f"{name.upper()}{place + 1 if 0 < place < _SIZE else ''}"
    return "-"


def at_least(severity: str) -> str:
    """The condition for this severity and those above, as queries and filters both understand it."""
    names = list(RANGES)
    begins = [text for name in names[names.index(severity) :] for text in _TEXTS[name]]
    like = " OR ".join(f"severity_text ILIKE '{begin}%'" for begin in begins)
    return f"(severity_number >= {RANGES[severity]} OR (severity_number = 0 AND ({like})))"


def colour_of(severity: str) -> str | None:
    """Of a record's severity as `severity_text` gives it."""
    lowered = severity.lower()
    for name, colour in (("fatal", "red"), ("error", "red"), ("warn", "yellow")):
        if lowered.startswith(_TEXTS[name]):
            return colour
    return None


# --------------------
# Values and names inside SQL text: whatever they are, they stay values and names.
#
# Texts and bytes are written in a way that both a query and a reader's filter understand, unless said otherwise.


def text_literal(text: str) -> str:
    """Backslashes mean nothing inside; only the quote itself is doubled."""
    return "'" + text.replace("'", "''") + "'"


def query_bytes(value: bytes) -> str:
    """For queries. DuckDB computes it once, and gives the scan the bytes."""
    return f"from_hex('{value.hex()}')"


def filter_bytes(value: bytes) -> str:
    """For filters."""
    return f"x'{value.hex()}'"


def query_time(time_us: int) -> str:
    """For queries: microseconds since 1970."""
    return f"make_timestamptz({time_us})"


def table_name(topic: TopicName) -> str:
    """A topic's names have no quotes in them; they may have dashes and dots, or be words of SQL."""
    return f'"{topic.namespace}"."{topic.name}"'


def check_text(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """For options: bytes of the command line that are no text cannot be sent to a broker."""
    if value is not None:
        try:
            value.encode()
        except UnicodeEncodeError:
            raise click.BadParameter("this is not text in UTF-8") from None
    return value
