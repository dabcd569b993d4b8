# SPDX-License-Identifier: Apache-2.0
"""The manifests of docs/kubernetes against the schemas that Kubernetes and JobSet publish."""

import os
import re
import subprocess

import pytest

from environments import HERE, python_of
from launching import REPOSITORY

FOLDER = os.path.join(REPOSITORY, "docs/kubernetes")
NAMES = sorted(name for name in os.listdir(FOLDER) if name.endswith(".yaml"))


def validate(*paths):
    return subprocess.run([python_of("kubernetes"), os.path.join(HERE, "scripts/validate_manifests.py"), *paths],
                          capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("name", NAMES)
def test_a_manifest_matches_the_schemas(name):
    done = validate(os.path.join(FOLDER, name))
    assert done.returncode == 0, done
    with open(os.path.join(FOLDER, name)) as file:
        kinds = re.findall(r"^kind: (\w+)$", file.read(), re.MULTILINE)
    assert done.stdout.split() == kinds, done


@pytest.mark.parametrize("name, good, bad", [
    ("indexed-job.yaml", "completions: 2", "completion: 2"),
    ("indexed-job.yaml", "subdomain: train", "subdomain: 7"),
    ("jobset.yaml", "replicas: 1", "replica: 1"),
    ("jobset.yaml", "maxRestarts: 3", "maxRestarts: many"),
    ("jobset.yaml", "backoffLimit: 0", "backoffLimits: 0"),
])
def test_the_check_finds_mistakes(tmp_path, name, good, bad):
    with open(os.path.join(FOLDER, name)) as file:
        text = file.read()
    assert good in text
    path = tmp_path / name
    path.write_text(text.replace(good, bad))
    done = validate(str(path))
    assert done.returncode == 1 and bad.split(":")[0].split()[0] in done.stderr, done
