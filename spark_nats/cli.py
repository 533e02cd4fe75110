"""The command ``spark-nats``, with one function per subcommand."""

from __future__ import annotations

import argparse
import difflib
import io
import itertools
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from spark_nats.client.servers import parse_servers
from spark_nats.commands import ACTIVITIES, BUCKET_ACTIVITIES, CORE_ACTIVITIES, STREAM_ACTIVITIES
from spark_nats.commands.console import Console, print_json
from spark_nats.conditions import others
from spark_nats.conditions.others import NOTHING_TO_REQUIRE, REQUIRED_UNKNOWN
from spark_nats.errors import NatsError, OptionError
from spark_nats.kinds.queries import documented_options, options_by_section, parse_options
from spark_nats.options.option import Option
from spark_nats.options.settings import CONNECTION
from spark_nats.version import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: the arguments; those of the process when None.

    Returns:
        The exit status: 0 for success, 1 for failure, 2 for a wrong option, 3 if ``lag`` does not know whether there
        is a failure, 130 after an interrupt.

    Raises:
        SystemExit: the arguments cannot be parsed (status 2), or ask for help or the version.
    """
    _make_output_safe()
    parsed = _make_parser().parse_args(arguments)
    try:
        status: int = parsed.run(parsed)
        sys.stdout.flush()
        return status
    except NatsError as error:
        print(f"spark-nats: {error.with_code()}", file=sys.stderr)
        status = 1 if error.condition in _OF_DAMAGE else parsed.unknown
        return 2 if isinstance(error, OptionError) else status
    except OSError as error:  # the output cannot be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python reports an error when it exits
        if not isinstance(error, BrokenPipeError):  # the reader has closed it, and knows
            print(f"spark-nats: the output cannot be written: {error.strerror}", file=sys.stderr)
        return int(parsed.unknown)
    except KeyboardInterrupt:
        print("spark-nats: interrupted", file=sys.stderr)
        return 130


_OF_DAMAGE = {
    each.code for each in (others.CHECKPOINT_DAMAGED, others.CHECKPOINT_INCOMPLETE, others.CHECKPOINT_NOT_OF_SPARK)
}


def _make_output_safe() -> None:
    """Let whatever is printed be printable: where standard output is closed, and where it takes ASCII only."""
    if sys.stdout is None:  # the shell's >&-
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - as long as the process
    elif isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


# Each command imports what is slow to import when it runs, so that --help is fast.


def _run_demo(parsed: argparse.Namespace) -> int:
    from spark_nats.demo.voice import Voice

    with Voice() as voice:
        voice.say(f"spark-nats {__version__}: {parsed.messages:,} orders through NATS, Spark and NATS again")
        voice.say()
        voice.note_step("loading")
        from spark_nats.demo.run import run  # slow: imports NumPy, PyArrow and the requirements of Spark

        return 0 if run(voice, parsed.messages, parsed.servers, parsed.keep) else 1


_ACTIVITIES: dict[str, tuple[str, tuple[str, ...]]] = {  # by the option that names what is checked; subjects last
    "bucket": ("a KV bucket", BUCKET_ACTIVITIES),
    "stream": ("a stream", STREAM_ACTIVITIES),
    "streamPattern": ("a stream", STREAM_ACTIVITIES),
    "subject": ("core NATS", CORE_ACTIVITIES),
}


def _run_check(parsed: argparse.Namespace) -> int:
    from spark_nats.commands.check import check
    from spark_nats.commands.report import print_report

    settings = parse_options(_options_in(parsed))
    given = settings.given
    required = set(parsed.require)
    if required and not _ACTIVITIES.keys() & set(given):
        raise OptionError(NOTHING_TO_REQUIRE())
    what, there_are = next((of for option, of in _ACTIVITIES.items() if option in given), _ACTIVITIES["subject"])
    for activity in required.difference(there_are):
        raise OptionError(REQUIRED_UNKNOWN(activity=activity, what=what, activities=", ".join(there_are)))
    report = check(settings)
    failures = report.failures(required)
    if parsed.json:
        print_json({**asdict(report), "failures": failures})
    else:
        print_report(report, Console())
        sys.stdout.flush()
        for failure in failures:
            print(f"spark-nats: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _run_lag(parsed: argparse.Namespace) -> int:
    from spark_nats.commands.lag import print_lag, prometheus_text, wait_and_ask_lag

    found = wait_and_ask_lag(parsed.checkpoint, parse_options(_options_in(parsed)))
    if parsed.json:
        print_json(asdict(found.lag))
    elif parsed.prometheus:
        print(prometheus_text(found), end="")
    else:
        print_lag(found, Console())
    return 1 if any(stream.problem for stream in found.lag.streams) else 0


def _run_options(parsed: argparse.Namespace) -> int:
    shown = [
        {
            "section": section,
            "name": each.option.name,
            "scope": each.scope,
            "default": each.default,
            "meaning": each.option.meaning,
        }
        for section, options in options_by_section().items()
        for each in options
        if parsed.scope in (None, each.scope) or each.scope == "both"
    ]
    if parsed.json:
        print_json(shown)
        return 0
    titles = ("option", "for", "default", "meaning")
    console = Console()
    for section, rows in itertools.groupby(shown, lambda each: each.pop("section")):
        console.print_line(section)
        cells = [[*row.values()] for row in rows]
        console.print_table(titles, [(*others, meaning.replace("`", "")) for *others, meaning in cells])
        console.print_line()
    return 0


class _Parser(argparse.ArgumentParser):
    """A parser that reports a wrong argument in two lines, without the usage, which takes pages here."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings, allow_abbrev=False)  # else a typing error passes for another option

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n{self.prog} --help lists what there is\n")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, rest = self.parse_known_args(args, namespace)
        if rest:  # not shown, because it may be the end of a password
            self.error("an argument belongs to no option; quote a value that has spaces")
        return parsed

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        arguments = list(sys.argv[1:] if args is None else args)
        if self._subparsers:  # the command's own parser checks the arguments after the command
            arguments = list(itertools.takewhile(lambda argument: argument.startswith("-"), arguments))
        checked = itertools.takewhile(lambda argument: argument != "--", arguments)
        for before, argument in itertools.pairwise(["", *checked]):
            name = argument.partition("=")[0]
            if re.match("-+[A-Za-z]", name) and " " not in argument and name not in self._option_string_actions:
                option = self._option_string_actions.get(before)
                if option is not None and option.nargs is None:  # this is its value, which may be a password
                    self.error(f"argument {before}: expected one argument; if it begins with a dash, write {before}=…")
                # Not the value, which may be a password.
                self.error(f"there is no option {name}{self._suggestion_for(name)}")
        return super().parse_known_args(args, namespace)

    def _suggestion_for(self, name: str) -> str:
        names = {known.strip("-").lower(): known for known in self._option_string_actions if known.startswith("--")}
        name = name.strip("-").lower()
        likely = [known for known in names if known.startswith(name)] or difflib.get_close_matches(name, names)
        return f"; did you mean {' or '.join(names[known] for known in likely)}?" if likely else ""


def _make_parser() -> argparse.ArgumentParser:
    known = {name: each.option for name, each in documented_options().items()}
    parser = _Parser(prog="spark-nats", description="The PySpark connector for NATS.")
    parser.add_argument("--version", action="version", version=f"spark-nats {__version__}")
    parser.set_defaults(unknown=1)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    check = commands.add_parser(
        "check",
        help="connect as Spark would, and say what is there and what one may do",
        description="Connect as Spark would with the same options, and print the server, the streams, and what the "
        "user may do with them. Nothing is changed. The status is 0 when the server lets us in, the streams that are "
        "named are there, and what is required is possible.",
    )
    _add_connection_options(check)
    what = check.add_argument_group("what to look at")
    _add_option(what, known["stream"], "streams to look at, comma-separated (default: all)")
    _add_option(what, known["streampattern"], "streams to look at, whose whole names this regular expression matches")
    _add_option(what, known["subject"], "subjects to publish to the stream; without --stream, those of core NATS")
    _add_option(what, known["statebucket"])
    _add_option(what, known["bucket"], "KV bucket to look at, instead of streams")
    _add_option(what, known["keys"], "keys to write in it, wildcards allowed, comma-separated (default: all)")
    what.add_argument(
        "--require",
        type=_read_activities,
        action="extend",
        default=[],
        metavar="ACTIVITY",
        help=f"end with status 1 unless this is possible, comma-separated: {', '.join(ACTIVITIES)}",
    )
    _add_json_option(check)
    check.set_defaults(run=_run_check)

    lag = commands.add_parser(
        "lag",
        help="say how far a streaming query is behind",
        description="Read where a streaming query is from its checkpoint, whether it runs or not, and ask the server "
        "how far its streams reach. The status is 1 when it cannot continue without a loss or its checkpoint is "
        "damaged, and 3 when that is not known, as when the server cannot be reached.",
    )
    lag.add_argument(
        "--checkpoint", required=True, metavar="DIR", help="the query's checkpointLocation, a path or a URI"
    )
    _add_connection_options(lag)
    of_query = lag.add_argument_group("of the query")
    _add_option(of_query, known["stream"], "its option 'stream': others, that it has read before, are left out")
    _add_option(of_query, known["subject"], "its option 'subject', if it has one")
    _add_option(of_query, known["keys"], "its option 'keys', if it reads a KV bucket and has one")
    _add_option(of_query, known["minoffsetspertrigger"], "its option 'minOffsetsPerTrigger', if it has one")
    shown = lag.add_mutually_exclusive_group()
    _add_json_option(shown)
    shown.add_argument("--prometheus", action="store_true", help="print metrics in the text format of Prometheus")
    lag.set_defaults(run=_run_lag, unknown=3)

    options = commands.add_parser("options", help='list the options of format("nats")')
    options.add_argument(
        "scope", nargs="?", choices=("read", "write"), help="only those for reading, or those for writing"
    )
    _add_json_option(options)
    options.set_defaults(run=_run_options)

    demo = commands.add_parser(
        "demo",
        help="show the connector at work, from nothing",
        description="Publish orders to NATS, let Spark turn them into revenue in a second stream, and check that "
        "nothing was lost, doubled or changed on the way.",
    )
    demo.add_argument(
        "--messages",
        type=_read_count,
        default=400_000,
        metavar="N",
        help="how many orders to publish (default: 400000)",
    )
    demo.add_argument(
        "--servers",
        type=_read_servers,
        metavar="URL",
        help="use this NATS server, with streams of its own that are deleted at the end (default: start a server)",
    )
    demo.add_argument(
        "--keep",
        action="store_true",
        help="keep the streams to look at; a server that was started runs until Ctrl-C",
    )
    demo.set_defaults(run=_run_demo)
    return parser


_OPTION = "option "  # prefix of argparse destinations that hold options of format("nats")


def _add_connection_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("how to connect", 'The options of format("nats"), by the same names.')
    for option in CONNECTION.values():
        _add_option(group, option)


def _add_option(group: argparse._ArgumentGroup, option: Option, meaning: str | None = None) -> None:
    default = f" (default: {option.default})" if option.default else ""
    shown = f"{meaning or option.meaning.replace('`', '') + default}".replace("%", "%%")
    group.add_argument(f"--{option.name}", dest=f"{_OPTION}{option.name}", metavar="VALUE", help=shown)


def _add_json_option(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _options_in(parsed: argparse.Namespace) -> dict[str, str]:
    given = ((name, value) for name, value in vars(parsed).items() if value is not None)
    return {name.removeprefix(_OPTION): value for name, value in given if name.startswith(_OPTION)}


def _read_activities(text: str) -> list[str]:
    wanted = [part.strip() for part in text.split(",")]
    for activity in wanted:
        if activity not in ACTIVITIES:
            raise argparse.ArgumentTypeError(f"{activity!r} is none of {', '.join(ACTIVITIES)}")
    return wanted


def _read_count(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return number


def _read_servers(text: str) -> str:
    try:
        parse_servers(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


if __name__ == "__main__":
    sys.exit(main())
