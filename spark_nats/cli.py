"""The command ``spark-nats``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from spark_nats import __version__
from spark_nats.client.servers import parse_servers
from spark_nats.errors import NatsError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: those of the command line, when None.

    Returns:
        The exit status: 0 when all went well, 1 when it did not, 130 when it was interrupted.
    """
    parsed = _parser().parse_args(arguments)
    try:
        from spark_nats.demo.run import run

        return 0 if run(parsed.messages, parsed.servers, parsed.keep) else 1
    except NatsError as error:
        print(f"spark-nats: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("spark-nats: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="spark-nats", description="The PySpark connector for NATS.")
    parser.add_argument("--version", action="version", version=f"spark-nats {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    demo = commands.add_parser(
        "demo",
        help="show the connector at work, from nothing",
        description="Publish orders to NATS, let Spark turn them into revenue in a second stream, and check that "
        "nothing was lost, doubled or changed on the way.",
    )
    demo.add_argument(
        "--messages", type=_count, default=200_000, metavar="N", help="how many orders to publish (default: 200000)"
    )
    demo.add_argument(
        "--servers",
        type=_servers,
        metavar="URL",
        help="use this NATS server, with streams of its own that are deleted at the end (default: start a server)",
    )
    demo.add_argument(
        "--keep",
        action="store_true",
        help="keep the streams, and a server that was started until Ctrl-C, to look at them",
    )
    return parser


def _count(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return number


def _servers(text: str) -> str:
    try:
        parse_servers(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


if __name__ == "__main__":
    sys.exit(main())
