# SPDX-License-Identifier: Apache-2.0
"""scripts/house.py finds circles of Python modules, however they import each other."""

import os
import sys

import pytest

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(REPOSITORY, "scripts"))

import house  # noqa: E402


def circles_of(tmp_path, monkeypatch, files):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    return house.circles(house.python_arrows(sorted(files)))


@pytest.mark.parametrize("back", [
    "from . import a", "from .a import name", "import package.a", "from package import a", "from package.a import name",
    "import importlib\nimportlib.import_module('.a', __package__)",
    "from importlib import import_module\nimport_module('package.a')",
    "import importlib\nLATER = {'name': 'a'}\nimportlib.import_module(f'{__package__}.{LATER[name]}')"])
def test_check_finds_circle_of_two_modules(tmp_path, monkeypatch, back):
    files = {"src/package/__init__.py": "", "src/package/a.py": "from . import b\n", "src/package/b.py": back + "\n"}
    assert circles_of(tmp_path, monkeypatch, files) == [["src/package/a", "src/package/b"]]


@pytest.mark.parametrize("back", ["from .. import inner", "from ..inner import name", "from . import name"])
def test_check_finds_circle_through_init_file(tmp_path, monkeypatch, back):
    files = {"src/package/__init__.py": "", "src/package/inner/__init__.py": "from .a import name\n",
             "src/package/inner/a.py": back + "\n"}
    assert circles_of(tmp_path, monkeypatch, files) == [["src/package/inner/__init__", "src/package/inner/a"]]


def test_check_accepts_package_that_imports_its_modules(tmp_path, monkeypatch):
    files = {"src/package/__init__.py": "from . import a, b\n", "src/package/a.py": "from . import b\n",
             "src/package/b.py": "import os\nfrom os import path\n"}
    assert circles_of(tmp_path, monkeypatch, files) == []
