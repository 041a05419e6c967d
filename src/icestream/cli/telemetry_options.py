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
