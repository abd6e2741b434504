"""A command with an internal error."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--how", default="zero")


def request_of(args: argparse.Namespace) -> str:
    how: str = args.how
    return how


def run(how: str) -> int:
    if how == "interrupt":
        raise KeyboardInterrupt
    raise ZeroDivisionError("our\nmistake")
