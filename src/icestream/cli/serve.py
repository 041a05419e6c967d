"""`icestream serve`: the broker process."""

from pathlib import Path

import click

from icestream.app import run
from icestream.cli.options import config_option, data_option
from icestream.cli.settings import make_files_private, read_settings

_PORT_HELP = "0 takes a free port, a negative number closes the door."


@click.command(name="serve", epilog="Example: icestream serve --data ./icestream-data --http-port 0")
@config_option
@data_option
@click.option("--host", metavar="ADDRESS", help="Address that all doors listen on (server.host).")
@click.option("--flight-port", type=int, metavar="N", help=f"Arrow Flight (server.flight_port). {_PORT_HELP}")
@click.option("--http-port", type=int, metavar="N", help=f"HTTP (server.http_port). {_PORT_HELP}")
@click.option("--otlp-grpc-port", type=int, metavar="N", help="OpenTelemetry over gRPC (server.otlp_grpc_port).")
@click.option("--otlp-http-port", type=int, metavar="N", help="OpenTelemetry over HTTP (server.otlp_http_port).")
@click.option("--no-pipeline", is_flag=True, help="Run the broker without its Spark pipeline (pipeline.enabled).")
@click.option("--master", metavar="URL", help="Spark master of the pipeline (pipeline.master).")
def command(
    config_file: Path | None,
    data: Path | None,
    host: str | None,
    flight_port: int | None,
    http_port: int | None,
    otlp_grpc_port: int | None,
    otlp_http_port: int | None,
    no_pipeline: bool,
    master: str | None,
) -> None:
    """Run the broker, and the Spark pipeline that writes its topics to Iceberg tables.

    Prints one line for each door and, when all are open, `ready` with their addresses as JSON. SIGTERM or Ctrl-C stops
    it: all acknowledged messages are safe, and the exit code is 0.
    """
    flags = {
        "data_dir": data,
        "server.host": host,
        "server.flight_port": flight_port,
        "server.http_port": http_port,
        "server.otlp_grpc_port": otlp_grpc_port,
        "server.otlp_http_port": otlp_http_port,
        "pipeline.enabled": False if no_pipeline else None,
        "pipeline.master": master,
    }
    make_files_private()
    run(read_settings(config_file, flags))
