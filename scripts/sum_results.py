# SPDX-License-Identifier: Apache-2.0
"""Sums the results that scripts/test has left in a folder, and ends with one plain line.

sum_results.py FOLDER: reads FOLDER/*.xml (JUnit, as ctest and pytest write it) and FOLDER/lanes.tsv
(name, result and count of checks without a JUnit file). NAME.again.xml holds the second, quiet run of
what failed in NAME.xml: who passes there is counted as passed, and named as FLAKY. Exit code 1 when
anything failed or nothing ran.

sum_results.py --failed FILE: the failed tests of pytest's JUnit file as arguments for pytest.
"""

import pathlib
import sys
import xml.etree.ElementTree as ElementTree


def result_of(case):
    """"passed", "failed" or "skipped" for one <testcase>."""
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    # ctest also writes <skipped> for a test that it could not start or that ended too late.
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
        # pytest reports a failing teardown as a second <testcase> of the same name.
        yield f"{case.get('classname', '')}.{case.get('name', '')}", result_of(case)


def lane_with_second_run(path):
    """Yields (name, result), "flaky" for what failed first and passed alone."""
    again = path.with_name(path.stem + ".again.xml")
    second = {}
    for name, result in junit_results(again) if again.exists() else ():
        second[name] = "failed" if "failed" in (result, second.get(name)) else result
    for name, result in junit_results(path):
        is_flaky = result == "failed" and second.get(name) == "passed"
        yield name, "flaky" if is_flaky else result


def failed_arguments(path):
    """The failed tests of pytest's JUnit file: tests/end_to_end/test_x.py::test_y[z]."""
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
