# SPDX-License-Identifier: Apache-2.0
"""Sums up the results of scripts/test.

sum_results.py FOLDER: reads FOLDER/*.xml (JUnit files of ctest and pytest) and FOLDER/lanes.tsv (name, result and count of
checks without a JUnit file), and prints the totals as its last line. NAME.again.xml contains the second run of the tests
that failed in NAME.xml, on a quiet machine: a test that passes there counts as passed and is reported as FLAKY. Exits with
1 if a test failed or if nothing ran.

sum_results.py --failed FILE: prints the failed tests of pytest's JUnit file as arguments for pytest.
"""

import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def result_of(case):
    """Returns "passed", "failed" or "skipped" for a <testcase>."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    # ctest also writes <skipped> for a test that it could not start or that timed out.
    if case.get("status") == "notrun":
        message = skipped.get("message", "") if skipped is not None else ""
        return "skipped" if message.startswith("SKIP_") else "failed"
    if case.get("status") == "disabled":
        return "skipped"
    return "passed" if skipped is None else "skipped"


def junit_results(path):
    """Yields (name, result) of every test in a JUnit file."""
    try:
        tree = ElementTree.parse(path)
    except ElementTree.ParseError as error:
        yield f"{path.name} ({error})", "failed"
        return
    for case in tree.iter("testcase"):
        # pytest reports a failed teardown as a second <testcase> of the same name.
        yield f"{case.get('classname', '')}.{case.get('name', '')}", result_of(case)


def lane_with_second_run(path):
    """Yields (name, result). The result is "flaky" if the test failed in the first run and passed in the second."""
    again = path.with_name(path.stem + ".again.xml")
    second = {}
    for name, result in junit_results(again) if again.exists() else ():
        second[name] = "failed" if "failed" in (result, second.get(name)) else result
    for name, result in junit_results(path):
        is_flaky = result == "failed" and second.get(name) == "passed"
        yield name, "flaky" if is_flaky else result


def failed_arguments(path):
    """Returns the failed tests of pytest's JUnit file: tests/end_to_end/test_x.py::test_y[z]."""
    names = dict.fromkeys((case.get("classname", ""), case.get("name", ""))
                          for case in ElementTree.parse(path).iter("testcase") if result_of(case) == "failed")
    return [f"{module.replace('.', '/')}.py::{name}" for module, name in names]


def lane_results(path):
    for line in path.read_text().splitlines():
        name, result, count = line.split("\t")
        for _ in range(int(count)):
            yield name, result


def main(folder):
    totals = {"passed": 0, "failed": 0, "skipped": 0, "flaky": 0}
    failed = []
    sources = [lane_with_second_run(path) for path in sorted(folder.glob("*.xml")) if not path.stem.endswith(".again")]
    if (folder / "lanes.tsv").exists():
        sources.append(lane_results(folder / "lanes.tsv"))
    for source in sources:
        for name, result in source:
            totals[result] += 1
            if result == "failed":
                failed.append(name)
            if result == "flaky":
                print(f"FLAKY {name}: failed once, passed when it ran again alone")
    for name in failed:
        print(f"FAILED {name}")
    totals["passed"] += totals["flaky"]
    if totals["passed"] == 0 and not failed:
        print("FAILED nothing ran")
        failed.append("nothing ran")
    print(f"{totals['passed']} passed, {totals['failed']} failed, {totals['skipped']} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1] == "--failed":
        print("\n".join(failed_arguments(sys.argv[2])))
    else:
        sys.exit(main(pathlib.Path(sys.argv[1])))
