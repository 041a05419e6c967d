"""`--from`: where reading starts."""

import click

from icestream.model.errors import InvalidRequestError
from icestream.model.offsets import FORMS, StartPosition


def parse_start(_ctx: click.Context, _param: click.Parameter, value: str) -> StartPosition:
    """One of the forms of a start position; a time without a zone is UTC."""
    try:
        return StartPosition.parse(value)
    except InvalidRequestError as error:
        if value.startswith("tag:") and value != "tag:":
            raise click.BadParameter(error.message) from None
        raise click.BadParameter(f"{value!r} is none of: {FORMS}") from None
