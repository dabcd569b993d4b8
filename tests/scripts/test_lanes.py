# SPDX-License-Identifier: Apache-2.0
"""scripts/lanes.py chooses the tests of the folders that differ, and finds names that tests/lanes.toml lacks."""

import os
import subprocess
import sys

import pytest

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(REPOSITORY, "scripts"))

import lanes  # noqa: E402

TABLE = {
    "programs": ["ivyrun"], "helpers": ["store"], "sample": ["sample_test"],
    "smoke": ["end_to_end/test_job.py::test_first", "end_to_end/test_output.py::test_label"],
    "folders": {"proto": {"units": ["proto_test"], "tests": ["end_to_end/test_output.py"]},
                "launcher": {"units": ["sample_test"], "tests": ["end_to_end/test_job.py"]},
                "launcher/ctl": {"units": ["ctl_test"], "tests": ["scripts/test_lanes.py"]}},
}
TARGETS = {
    "proto_test": lanes.TestTarget("tests/proto", {"env_test.cc", "text_test.cc"}),
    "tls_test": lanes.TestTarget("tests/proto", {"tls_test.cc"}),
    "sample_test": lanes.TestTarget("tests/launcher", {"plan_test.cc"}),
    "ctl_test": lanes.TestTarget("tests/launcher", {"ctl_test.cc"}),
}
FILES = ["proto/a.h", "launcher/a.cc", "launcher/ctl/b.cc", "tests/end_to_end/test_job.py", "tests/end_to_end/test_output.py",
         "tests/scripts/test_lanes.py"]
CMAKE = "add_executable(ivyrun main.cc)\nadd_library(store STATIC store.cc)"


def selection(*files):
    return lanes.Selection(TABLE, TARGETS, files)


def test_fresh_clone_gets_the_sample():
    chosen = selection()
    assert chosen.is_sample and chosen.units == ["sample_test"] and chosen.tests("changed") == TABLE["smoke"]


def test_changed_file_selects_the_tests_of_the_longest_folder():
    assert selection("launcher/ctl/b.cc").units == ["ctl_test"]
    assert selection("launcher/job/c.cc").units == ["sample_test"]
    assert not selection("launcher/job/c.cc").is_sample
    assert selection("README.md", "proto/README.md", "launcher_notes/x.cc").is_sample


def test_changed_folder_runs_its_files_in_place_of_their_smoke_tests():
    chosen = selection("proto/a.h")
    assert chosen.tests("quick") == TABLE["smoke"]
    assert chosen.tests("changed") == ["end_to_end/test_output.py", "end_to_end/test_job.py::test_first"]


def test_changed_unit_test_selects_the_program_made_of_it():
    assert selection("tests/proto/tls_test.cc").units == ["tls_test"]
    assert selection("tests/proto/fixture.h").units == ["proto_test", "tls_test"]


def test_each_part_builds_only_what_it_starts():
    targets = {**TARGETS, "StoreTorch": lanes.TestTarget("tests/rendezvous", set(), is_program=False)}
    units = ["proto_test", "StoreTorch"]
    assert lanes.targets_of(TABLE, units, targets, "both") == ["ivyrun", "proto_test", "store"]
    assert lanes.targets_of(TABLE, units, targets, "unit") == ["proto_test", "store"]
    assert lanes.targets_of(TABLE, units, targets, "e2e") == ["ivyrun", "store"]


def test_changed_end_to_end_file_runs():
    assert selection("tests/end_to_end/test_job.py").files == ["end_to_end/test_job.py"]


def test_tests_of_scripts_run_with_the_style_check_only():
    assert selection("launcher/ctl/b.cc").files == []


def test_changed_files_are_committed_and_uncommitted_ones(tmp_path, monkeypatch):
    def git(*words):
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *words], cwd=tmp_path, check=True, capture_output=True)

    def write(*names):
        for name in names:
            (tmp_path / name).write_text(name + str(os.urandom(4)))

    monkeypatch.chdir(tmp_path)
    assert lanes.changed_files() == []  # No repository, as in an unpacked archive.
    git("init", "-q", "-b", "main")
    write("kept", "other", "third")
    git("add", "-A")
    git("commit", "-qm", "one")
    assert lanes.changed_files() == []
    git("checkout", "-qb", "work")
    write("other")
    git("commit", "-qam", "two")
    write("third", "new")
    assert sorted(lanes.changed_files()) == ["new", "other", "third"]
    # What main has gained since does not count.
    git("stash", "-qu")
    git("checkout", "-q", "main")
    write("kept")
    git("commit", "-qam", "three")
    git("checkout", "-q", "work")
    assert lanes.changed_files() == ["other"]


def test_numbers_are_those_of_the_targets_tests():
    listing = {"tests": [{"name": "Env.A", "command": ["/b/bin/proto_test", "--gtest_filter=Env.A"]},
                         {"name": "Ctl.A", "command": ["/b/bin/ctl_test"]}, {"name": "ctl_NOT_BUILT"},
                         {"name": "StoreTorch", "command": ["/usr/bin/python3"]},
                         {"name": "Env.B", "command": ["/b/bin/proto_test"]}]}
    assert lanes.numbers(listing, {"proto_test", "StoreTorch"}) == [1, 4, 5]


def table_without(*path):
    def copy(value):
        return {key: copy(one) for key, one in value.items()} if isinstance(value, dict) else list(value)
    table = copy(TABLE)
    *above, last = path
    place = table
    for name in above:
        place = place[name]
    if isinstance(place, list):
        place.remove(last)
    else:
        del place[last]
    return table


@pytest.mark.parametrize("path, sentence", [
    (("folders", "proto", "tests", "end_to_end/test_output.py"), "end_to_end/test_output.py belongs to no folder"),
    (("folders", "launcher/ctl", "units", "ctl_test"), "test target ctl_test belongs to no folder"),
    (("folders", "proto"), "proto/ belongs to no row")])
def test_check_reports_what_the_table_lacks(path, sentence, monkeypatch):
    monkeypatch.setattr(lanes, "functions_of", lambda path: {"test_first": False, "test_label": False})
    assert sentence in lanes.disagreements(table_without(*path), FILES, TARGETS, CMAKE)


@pytest.mark.parametrize("part, name, sentence", [
    ("sample", "gone_test", "gone_test is not a test target"),
    ("programs", "gone", "gone is not a target"),
    ("smoke", "end_to_end/test_job.py::test_gone", "smoke test end_to_end/test_job.py::test_gone does not exist"),
    ("smoke", "end_to_end/test_job.py::test_slow", "smoke test end_to_end/test_job.py::test_slow is marked long")])
def test_check_reports_names_that_do_not_exist(part, name, sentence, monkeypatch):
    monkeypatch.setattr(lanes, "functions_of", lambda path: {"test_first": False, "test_label": False, "test_slow": True})
    targets = {**TARGETS, "tls_test": TARGETS["tls_test"]}
    table = {**TABLE, part: TABLE[part] + [name]}
    table["folders"] = {**TABLE["folders"], "rendezvous": {"units": ["tls_test"], "tests": ["end_to_end/test_none.py"]}}
    assert sorted(lanes.disagreements(table, FILES, targets, CMAKE)) == sorted(
        [sentence, "end_to_end/test_none.py does not exist", "folder rendezvous does not exist"])


def test_check_accepts_the_table_of_this_tree(monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    assert lanes.check() == 0
