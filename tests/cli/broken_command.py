"""A command with a mistake of ours in it."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--how", default="zero")


def run(args: argparse.Namespace) -> int:
    if args.how == "interrupt":
        raise KeyboardInterrupt
    raise ZeroDivisionError("our\nmistake")
