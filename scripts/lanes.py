#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Selects tests for scripts/test, according to tests/lanes.toml.

    scripts/lanes.py title            prints in one line what is selected, and why
    scripts/lanes.py units            prints the unit test programs of the changed folders, or else a sample
    scripts/lanes.py targets PART     prints the targets to build; PART: unit, e2e or both
    scripts/lanes.py tests EXTENT     prints end-to-end tests; EXTENT: quick (the smoke test) or changed (also the test
                                      files of the changed folders)
    scripts/lanes.py left-out EXTENT  prints what is not selected, and the commands that run it; EXTENT may also be all
    scripts/lanes.py numbers BUILD TARGET...  prints the numbers of the targets' tests, in the format of ctest -I
    scripts/lanes.py check            fails if tests/lanes.toml does not match the tree

A folder has changed if one of its files differs from the commit where this branch left origin/main (main, if there is no
origin). Uncommitted files count. Names are printed one per line.
"""

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
import typing

import style_rules

TABLE = "tests/lanes.toml"
PRODUCT = ("proto", "rendezvous", "comm", "agent", "launcher")
CMAKE = re.compile(r"^tests/(.*/)?(CMakeLists\.txt|\w+\.cmake)$")


def read_table(path=TABLE):
    with open(path, "rb") as stream:
        return tomllib.load(stream)


def unique(names):
    return list(dict.fromkeys(names))


# -- changed files

def git(*words):
    """Returns the lines of git's output, or None if git fails (no repository, no such branch)."""
    done = subprocess.run(["git", *words], capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else None


def base():
    """Returns the commit where this branch left origin/main or main, or None."""
    for branch in ("origin/main", "main"):
        found = git("merge-base", "HEAD", branch)
        if found:
            return found[0]
    return None


def changed_files():
    commit = base()
    if commit is None:
        return []
    return unique((git("diff", "--name-only", commit) or []) + (git("ls-files", "-o", "--exclude-standard") or []))


# -- tests of changed files

def folder_of(path, folders):
    """Returns the innermost of the folders that contains the file, or None."""
    leading = [folder for folder in folders if path.startswith(folder + "/")]
    return max(leading, key=len, default=None)


class Selection:
    """The tests of a list of changed files. `targets`: the result of test_targets()."""

    def __init__(self, table, targets, files):
        rows = table["folders"]
        units, tests = [], []
        for path in files:
            if path.endswith(".md") and not path.startswith("docs/"):
                continue  # A README changes no code.
            row = rows.get(folder_of(path, rows), {"units": [], "tests": []})
            units += row["units"] + units_of_test(path, targets)
            tests += row["tests"] + [test for test in all_tests(rows) if path == "tests/" + test]
        self.is_sample = not units
        self.units = unique(units) or table["sample"]
        # The style check runs the tests of scripts/.
        self.files = [test for test in unique(tests) if not test.startswith("scripts/")]
        self.smoke = table["smoke"]

    def tests(self, extent):
        files = self.files if extent == "changed" else []
        return files + [test for test in self.smoke if test.partition("::")[0] not in files]


def all_tests(rows):
    return {test for row in rows.values() for test in row["tests"]}


def targets_of(table, units, targets, part):
    names = table["programs"] if part != "unit" else []
    if part != "e2e":
        # A test made by add_test() has no target of its own; the program that it starts is among the helpers.
        names = names + [unit for unit in units if targets[unit].is_program]
    return names + table["helpers"]


def units_of_test(path, targets):
    """Returns the test programs that contain this source, or all programs of the file's folder if none does."""
    if not path.startswith("tests/"):
        return []
    own_folder, name = os.path.split(path)
    here = {name: target for name, target in targets.items() if target.folder == own_folder}
    made_of_it = [target for target, described in here.items() if name in described.sources]
    return made_of_it or list(here)


class TestTarget(typing.NamedTuple):
    folder: str  # The folder of its CMakeLists.txt.
    sources: set
    is_program: bool = True  # False: a test made by add_test().


def test_targets():
    """Returns {name: TestTarget} for each program with unit tests and each test made by add_test()."""
    found = {}
    for path in style_rules.repository_files():
        if not CMAKE.match(path):
            continue
        text = re.sub(r"#[^\n]*", "", style_rules.read(path))
        for target in re.findall(r"gtest_discover_tests\(\s*(\w+)", text):
            sources = re.search(rf"add_executable\(\s*{target}\s([^)]*)\)", text)
            found[target] = TestTarget(os.path.dirname(path), set(sources.group(1).split()) if sources else set())
        for name in re.findall(r"add_test\(\s*NAME\s+(\w+)", text):
            found[name] = TestTarget(os.path.dirname(path), set(), is_program=False)
    return found


# -- ctest

def numbers(listing, targets):
    """Returns the numbers, from 1, of tests in the output of `ctest --show-only=json-v1`. `targets`: names of tests or of the
    programs that they run."""
    chosen = []
    for number, test in enumerate(listing["tests"], 1):
        program = os.path.basename(test["command"][0]) if test.get("command") else ""
        if program in targets or test["name"] in targets:
            chosen.append(number)
    return chosen


def print_numbers(build, targets):
    listed = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], check=True, capture_output=True).stdout
    found = numbers(json.loads(listed), set(targets))
    # ctest expects start, end and stride before the numbers; 0,0,0 selects nothing. Without any number, ctest would run all
    # tests, so pass 0, which no test has.
    print(",".join(["0,0,0", *map(str, found or [0])]))


# -- the check

def test_files(files):
    return [path.removeprefix("tests/") for path in files if re.fullmatch(r"tests/.*/test_\w+\.py", path)]


def functions_of(path):
    """Returns {name: whether it is marked long} for the test functions of a file."""
    tree = ast.parse(style_rules.read(path))
    return {node.name: any("mark.long" in ast.unparse(decorator) for decorator in node.decorator_list)
            for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def disagreements(table, files, targets, cmake_text):
    """Returns a sentence for each name that is missing in the table, or that is in the table but not in the tree."""
    rows = table["folders"]
    units = {unit for row in rows.values() for unit in row["units"]}
    tests = all_tests(rows)
    found = [f"{test} belongs to no folder" for test in test_files(files) if test not in tests]
    found += [f"test target {target} belongs to no folder" for target in sorted(targets) if target not in units]
    found += [f"{unit} is not a test target" for unit in sorted(units | set(table["sample"])) if unit not in targets]
    found += [f"{test} does not exist" for test in sorted(tests) if "tests/" + test not in files]
    found += [f"folder {folder} does not exist" for folder in rows
              if not any(path.startswith(folder + "/") for path in files)]
    folders = {os.path.dirname(path) for path in files if path.endswith((".h", ".cc", ".c", ".py"))}
    found += [f"{folder}/ belongs to no row" for folder in sorted(folders)
              if folder.split("/")[0] in PRODUCT and not folder_of(folder + "/", rows)]
    found += [f"{target} is not a target" for target in table["programs"] + table["helpers"]
              if not re.search(rf"\badd_(executable|library|custom_target)\(\s*{re.escape(target)}\b", cmake_text)]
    for name in table["smoke"]:
        path, _, function = name.partition("::")
        functions = functions_of("tests/" + path) if "tests/" + path in files else {}
        if function not in functions:
            found.append(f"smoke test {name} does not exist")
        elif functions[function]:
            found.append(f"smoke test {name} is marked long")
    return found


def check():
    files = style_rules.repository_files()
    cmake_text = "\n".join(style_rules.read(path) for path in files if path.endswith((".cmake", "CMakeLists.txt")))
    found = disagreements(read_table(), files, test_targets(), cmake_text)
    for sentence in found:
        print(f"{TABLE}:1: {sentence}")
    return 1 if found else 0


# -- text for people

def title(chosen):
    if chosen.is_sample:
        return "no folder with unit tests differs from the main branch: a sample of them, and the smoke test"
    return f"unit tests of the folders that differ from {base()[:12]}, and the smoke test"


def left_out(table, chosen, targets, extent):
    """Returns lines that say what is not selected, with the command that runs it."""
    lines = []
    if extent == "quick" and chosen.files:
        lines.append(f"end-to-end tests of the folders that differ, in {len(chosen.files)} files: scripts/test --changed")
    if extent != "all":
        units = len(targets) - len(chosen.units)
        files = {test for test in all_tests(table["folders"]) if not test.startswith("scripts/")} - set(chosen.tests(extent))
        lines.append(f"{units} of {len(targets)} unit test programs, and end-to-end tests in {len(files)} files: "
                     "scripts/test --all")
    return lines + ["long tests, sanitizers, fuzzing, the kernels for aarch64: scripts/test --long"]


def main():
    verb, *words = sys.argv[1:] or ["--help"]
    if verb == "check":
        return check()
    if verb == "numbers":
        print_numbers(words[0], words[1:])
        return 0
    if verb not in ("title", "units", "targets", "tests", "left-out"):
        print(__doc__)
        return 0 if verb in ("-h", "--help") else 2
    table, targets = read_table(), test_targets()
    chosen = Selection(table, targets, changed_files())
    if verb == "title":
        names = [title(chosen)]
    elif verb == "units":
        names = chosen.units
    elif verb == "targets":
        names = targets_of(table, chosen.units, targets, words[0])
    elif verb == "tests":
        names = chosen.tests(words[0])
    else:
        names = left_out(table, chosen, targets, words[0])
    print("\n".join(names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
