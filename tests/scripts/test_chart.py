# SPDX-License-Identifier: Apache-2.0
"""The chart of README.md shows the figures of tests/bench/figures.md."""

import os
import sys

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(REPOSITORY, "scripts/packaging"))

import chart  # noqa: E402


def text_of(path):
    with open(os.path.join(REPOSITORY, path), encoding="utf-8") as file:
        return file.read()


def test_the_chart_is_up_to_date():
    assert chart.make(text_of("tests/bench/figures.md")) == text_of("docs/start-times.svg"), "run scripts/docs chart"
