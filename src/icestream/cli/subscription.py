"""`icestream subscription`: list, describe, create, seek, reset, delete."""

import click

from icestream.cli.options import POSITION, broker_option, choices, json_option, parse_start
from icestream.cli.output import console, count_text, duration_text, plural, print_json, rfc3339, table
from icestream.cli.stats import lag_text, subscription_table
from icestream.client import BrokerEndpoint, Client, SubscriptionDescription
from icestream.model.enums import SubscriptionType
from icestream.model.offsets import StartPosition

TYPES = choices(SubscriptionType)


@click.group(name="subscription", epilog="Example: icestream subscription list default/events")
def command() -> None:
    """List, create, move and delete subscriptions.

    A subscription remembers what its consumers have acknowledged of a topic. `icestream consume TOPIC --subscription
    NAME` consumes from one.
    """


@command.command(name="list", epilog="Example: icestream subscription list default/events --json")
@click.argument("topic", required=False)
@broker_option
@json_option
def list_(topic: str | None, broker: BrokerEndpoint, as_json: bool) -> None:
    """List the subscriptions of TOPIC, or all."""
    with Client(broker) as client:
        found = [subscription.to_dict() for subscription in client.subscriptions(topic)]
    if as_json:
        print_json({"subscriptions": found})
    else:
        console().print(subscription_table(found))


@command.command(epilog="Example: icestream subscription describe default/events billing")
@click.argument("topic")
@click.argument("name")
@broker_option
@json_option
def describe(topic: str, name: str, broker: BrokerEndpoint, as_json: bool) -> None:
    """Print everything about the subscription NAME of TOPIC: progress, options, consumers."""
    with Client(broker) as client:
        _show(client.describe_subscription(topic, name), as_json=as_json)


@command.command(epilog="Example: icestream subscription create default/events billing --type shared --from latest")
@click.argument("topic")
@click.argument("name")
@click.option("--type", "kind", type=TYPES, help="How consumers share the messages.  [default: exclusive]")
@click.option(
    "--from",
    "start",
    callback=parse_start,
    default="earliest",
    show_default=True,
    metavar=POSITION,
    help="Where a new subscription begins. A TIMESTAMP without a zone is UTC.",
)
@click.option("--filter", "condition", metavar="EXPR", help="Deliver only messages that meet this SQL condition.")
@click.option(
    "--ack-timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Deliver a message again when it is not acknowledged for so long.  [default: when its consumer ends]",
)
@click.option(
    "--nack-delay",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Deliver a nacked message again after so long.  [default: 1]",
)
@click.option(
    "--max-redeliveries",
    type=click.IntRange(min=0),
    metavar="N",
    help="Move a message to the dead-letter topic after N redeliveries.  [default: never]",
)
@click.option("--dead-letter-topic", metavar="TOPIC", help="The dead-letter topic.  [default: TOPIC-NAME-dead-letters]")
@broker_option
@json_option
def create(
    topic: str,
    name: str,
    kind: str | None,
    start: StartPosition,
    condition: str | None,
    ack_timeout: float | None,
    nack_delay: float | None,
    max_redeliveries: int | None,
    dead_letter_topic: str | None,
    broker: BrokerEndpoint,
    as_json: bool,
) -> None:
    """Create the subscription NAME of TOPIC.

    An existing subscription keeps its progress and takes the given options, if no consumer is connected.
    """
    with Client(broker) as client:
        made = client.create_subscription(
            topic,
            name,
            type=kind,
            start=start,
            filter=condition,
            ack_timeout=ack_timeout,
            nack_delay=nack_delay,
            max_redeliveries=max_redeliveries,
            dead_letter_topic=dead_letter_topic,
        )
    if as_json:
        print_json(made.to_dict())
    else:
        click.echo(f"{made.subscription} of {made.topic} is ready at offset {made.floor_offset}")


@command.command(epilog="Example: icestream subscription seek default/events billing --to 2026-01-31T12:00:00Z")
@click.argument("topic")
@click.argument("name")
@click.option(
    "--to", "position", callback=parse_start, required=True, metavar=POSITION, help="The next message to deliver."
)
@broker_option
@json_option
def seek(topic: str, name: str, position: StartPosition, broker: BrokerEndpoint, as_json: bool) -> None:
    """Move the subscription NAME of TOPIC backward or forward. Consumers stay connected."""
    _move(topic, name, position, broker, as_json=as_json)


@command.command(epilog="Example: icestream subscription reset default/events billing")
@click.argument("topic")
@click.argument("name")
@click.option(
    "--to",
    "position",
    callback=parse_start,
    default="earliest",
    show_default=True,
    metavar=POSITION,
    help="The next message to deliver.",
)
@broker_option
@json_option
def reset(topic: str, name: str, position: StartPosition, broker: BrokerEndpoint, as_json: bool) -> None:
    """Move the subscription NAME of TOPIC to its beginning, or to --to."""
    _move(topic, name, position, broker, as_json=as_json)


@command.command(epilog="Example: icestream subscription delete default/events billing --yes")
@click.argument("topic")
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@broker_option
@json_option
def delete(topic: str, name: str, yes: bool, broker: BrokerEndpoint, as_json: bool) -> None:
    """Delete the subscription NAME of TOPIC and its progress. Its consumers end; the messages stay."""
    with Client(broker) as client:
        found = client.describe_subscription(topic, name)
        if not yes:
            consumers = plural(len(found.consumers), "consumer")
            click.confirm(f"Delete {found.subscription} of {found.topic} ({consumers})?", abort=True, err=True)
        client.delete_subscription(found.topic, found.subscription)
    if as_json:
        print_json({"topic": found.topic, "subscription": found.subscription, "deleted": True})
    else:
        click.echo(f"{found.subscription} of {found.topic} is deleted")


def _move(topic: str, name: str, position: StartPosition, broker: BrokerEndpoint, *, as_json: bool) -> None:
    with Client(broker) as client:
        offset = client.seek_subscription(topic, name, position)
    if as_json:
        print_json({"topic": topic, "subscription": name, "offset": offset})
    else:
        click.echo(f"{name} continues at offset {offset}")


def _show(found: SubscriptionDescription, *, as_json: bool) -> None:
    if as_json:
        print_json(found.to_dict())
        return
    options = found.options
    timeout = options.get("ack_timeout_ms")
    most = options.get("max_redeliveries")
    fields = {
        "subscription": found.subscription,
        "topic": found.topic,
        "type": found.type,
        "filter": found.filter or "none",
        "progress": f"all below {found.floor_offset}, {plural(found.acknowledged_ranges, 'range')} above",
        "read up to": f"{found.read_offset} of {found.durable_end}",
        "lag": lag_text(found.lag_messages, found.lag_seconds),
        "with consumers": plural(found.unacknowledged, "message"),
        "sent again": count_text(found.redeliveries),
        "dead letters": count_text(found.dead_letters),
        "ack timeout": "none" if timeout is None else duration_text(timeout / 1000),
        "nack delay": duration_text(options.get("nack_delay_ms", 0) / 1000),
        "redeliveries": "without limit" if most is None else f"at most {most}",
        "dead letters to": options.get("dead_letter_topic", "the default topic" if most is not None else "nowhere"),
    }
    for name, value in fields.items():
        click.echo(f"{name:15} {value}")
    if found.consumers:
        shown = table(
            "consumer", "connected", "unacknowledged", "credit", "active", numbers=("unacknowledged", "credit")
        )
        for consumer in found.consumers:
            shown.add_row(
                consumer.name,
                rfc3339(consumer.connected_us),
                count_text(consumer.unacknowledged),
                count_text(consumer.credit_messages),
                "yes" if consumer.is_active else "waits",
            )
        console().print(shown)
