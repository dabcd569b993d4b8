# SPDX-License-Identifier: Apache-2.0
"""Validates Kubernetes manifests, and prints the kind of each object. Needs kubernetes-validate and kubeflow-trainer-api,
which has the published model of JobSet."""

import sys

import kubernetes_validate
import yaml
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet


def unknown_fields(document, known, path=""):
    """Returns the fields that a model has dropped."""
    if isinstance(document, dict):
        for name, value in document.items():
            place = f"{path}.{name}" if path else name
            if not isinstance(known, dict) or name not in known:
                yield place
            else:
                yield from unknown_fields(value, known[name], place)
    elif isinstance(document, list):
        for number, value in enumerate(document):
            yield from unknown_fields(value, known[number], f"{path}[{number}]")


def check(document):
    if document["kind"] != "JobSet":
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
        return
    unknown = list(unknown_fields(document, JobsetV1alpha2JobSet.from_dict(document).to_dict()))
    if unknown:
        raise ValueError("unknown fields: " + ", ".join(unknown))
    for jobs in document["spec"]["replicatedJobs"]:
        check({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": jobs["name"]}, **jobs["template"]})


for path in sys.argv[1:]:
    with open(path) as file:
        for document in yaml.safe_load_all(file):
            try:
                check(document)
            except Exception as error:
                sys.exit(f"{path}: {document['kind']}: {error}")
            print(document["kind"])
