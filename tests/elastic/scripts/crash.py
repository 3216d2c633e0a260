#!/usr/bin/env python3
"""A script that crashes before its first step: with the exit code it is told, else with an error."""

import sys


def build_model() -> None:
    if len(sys.argv) > 1:
        sys.exit(int(sys.argv[1]))
    raise ValueError("no layer of that name")


build_model()
