# SPDX-License-Identifier: Apache-2.0
"""scripts/release, in a small repository with this project's own version and changelog."""

import os
import re
import shutil
import subprocess

import pytest

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))

FILES = ("CMakeLists.txt", "CHANGELOG.md", "scripts/release")


@pytest.fixture
def checkout(tmp_path):
    for name in FILES:
        os.makedirs(tmp_path / os.path.dirname(name), exist_ok=True)
        shutil.copy(os.path.join(REPOSITORY, name), tmp_path / name)
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "All"]):
        git(tmp_path, *words)
    return tmp_path


def git(folder, *words):
    names = ["-c", "user.name=A Maintainer", "-c", "user.email=maintainer@example.org"]
    return subprocess.run(["git", *names, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def release(folder, *words):
    return subprocess.run(["/usr/bin/python3", folder / "scripts/release", *words], capture_output=True, text=True,
                          check=False)


def test_a_dry_run_shows_the_release_and_changes_nothing(checkout):
    done = release(checkout, "--dry-run", "7.8.9")
    assert done.returncode == 0, done.stderr
    assert "CMakeLists.txt: project(ivyrun VERSION 7.8.9" in done.stdout
    assert re.search(r"CHANGELOG.md: ## 7\.8\.9 - \d{4}-\d\d-\d\d", done.stdout)
    assert "git commit -q -m Release 7.8.9" in done.stdout and "git tag -a v7.8.9" in done.stdout
    assert git(checkout, "status", "--porcelain") == "" and git(checkout, "tag") == ""


def test_a_release_commits_and_tags_what_its_check_accepts(checkout):
    with open(checkout / "scripts/test", "w", encoding="utf-8") as tests:
        tests.write("#!/bin/sh\nexit 0\n")
    os.chmod(checkout / "scripts/test", 0o755)
    git(checkout, "add", ".")
    git(checkout, "commit", "-q", "-m", "Tests")
    git(checkout, "config", "user.name", "A Maintainer")
    git(checkout, "config", "user.email", "maintainer@example.org")
    assert release(checkout, "--check", "7.8.9").returncode == 1
    done = release(checkout, "7.8.9")
    assert done.returncode == 0, done.stderr
    assert git(checkout, "tag").split() == ["v7.8.9"] and git(checkout, "status", "--porcelain") == ""
    assert release(checkout, "--check", "7.8.9").returncode == 0
    again = release(checkout, "--dry-run", "7.8.9")
    assert again.returncode == 1 and "is not newer than v7.8.9" in again.stderr


@pytest.mark.parametrize("version, why", [("1.2", "is not MAJOR.MINOR.PATCH"), ("0.2.0", "has changes")])
def test_an_impossible_release_is_rejected_with_its_reason(checkout, version, why):
    with open(checkout / "CHANGELOG.md", "a", encoding="utf-8") as changelog:
        changelog.write("more\n")
    done = release(checkout, "--dry-run", version)
    assert done.returncode == 1 and why in done.stderr


def test_the_python_package_takes_its_version_from_cmake():
    with open(os.path.join(REPOSITORY, "CMakeLists.txt"), encoding="utf-8") as file:
        version = re.search(r"project\(ivyrun VERSION ([\d.]+)", file.read())[1]
    said = subprocess.run(["/usr/bin/python3", "setup.py", "--version"], cwd=os.path.join(REPOSITORY, "comm/python"),
                          capture_output=True, text=True, check=True).stdout
    assert said.split()[-1] == version
