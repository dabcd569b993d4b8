#!/usr/bin/env python3
"""Measures the house: rooms, arrows, circles, classes, functions, comments, lines, READMEs.

    scripts/house.py                 the table for tests/README.md
    scripts/house.py --circles       each circle with the includes that close it
    scripts/house.py --classes       every class with more than 30 methods or 20 members
    scripts/house.py --twice         names of unnamed namespaces that stand twice in a folder
    scripts/house.py --check         fails if files, folders or Python modules include each other in a circle, or if a
                                     name of an unnamed namespace stands twice in a folder (a unity build needs that)
    scripts/house.py --subtracted    commits since the floors were begun that left fewer lines of product, and their sum

A room is a header together with its source: an include of either counts. Classes and functions come from
universal-ctags (scripts/setup test), lambdas are not functions. Product is everything outside tests/.
"""

import ast
import collections
import json
import os
import re
import subprocess
import sys

import style_rules

PRODUCT = ("proto", "rendezvous", "comm", "agent", "launcher")
MOST_METHODS, MOST_MEMBERS, LONG_FUNCTION, MANY_PARAMETERS = 30, 20, 40, 4
LONG_README, WIDE_LINE = 150, 120
BEFORE_THE_FLOORS = "1594dea3"
TO_A_TOOL = re.compile(r"NOLINT|clang-format (off|on)$")  # An order to a program is no comment.
BAD_OPENING = re.compile(r"(Of|Who|Whom|Whose|Whoever|Nobody|Somebody|Was)\b")


def tracked(pattern):
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], check=True, capture_output=True)
    return sorted(path for path in listed.stdout.decode().split("\0")
                  if path and re.search(pattern, path) and os.path.isfile(path))


def lines_of(path):
    with open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read().splitlines()


# -- rooms and arrows

def room_of(path):
    return path.rsplit(".", 1)[0]


def arrows_between_rooms(files):
    """{room: {room: [file:line]}} over our own includes, in headers and sources."""
    rooms = {room_of(path) for path in files}
    arrows = {room: collections.defaultdict(list) for room in rooms}
    for path in files:
        for number, line in enumerate(lines_of(path), 1):
            match = re.match(r'\s*#\s*include\s+"([^"]+)"', line)
            target = match and room_of(match.group(1))
            if target in rooms and target != room_of(path):
                arrows[room_of(path)][target].append(f"{path}:{number}")
    return arrows


def python_arrows(files):
    """The same among the modules of our Python packages."""
    modules = {path[:-3].replace("/", "."): room_of(path) for path in files}
    arrows = {room_of(path): collections.defaultdict(list) for path in files}
    for path in files:
        tree = ast.parse("\n".join(lines_of(path)))
        package = path[:-3].replace("/", ".").rsplit(".", 1)[0]
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or not node.level:
                continue
            above = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
            stem = f"{above}.{node.module}" if node.module else above
            for name in [stem] + [f"{stem}.{alias.name}" for alias in node.names]:
                target = modules.get(name)
                if target and target != room_of(path):
                    arrows[room_of(path)][target].append(f"{path}:{node.lineno}")
    return arrows


def folders_of(arrows):
    """The same arrows between the folders that hold the rooms."""
    result = collections.defaultdict(lambda: collections.defaultdict(list))
    for source, targets in arrows.items():
        result[os.path.dirname(source)]  # A folder without arrows counts too.
        for target, where in targets.items():
            if os.path.dirname(source) != os.path.dirname(target):
                result[os.path.dirname(source)][os.path.dirname(target)] += where
    return result


def circles(arrows):
    """Strongly connected components of more than one node (Tarjan 1972, without recursion)."""
    index, low, stack, on_stack, found = {}, {}, [], set(), []
    for start in sorted(arrows):
        if start in index:
            continue
        work = [(start, iter(sorted(arrows[start])))]
        index[start] = low[start] = len(index)
        stack.append(start)
        on_stack.add(start)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(sorted(arrows.get(target, ())))))
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    component = []
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        component.append(member)
                        if member == node:
                            break
                    if len(component) > 1:
                        found.append(sorted(component))
    return sorted(found, key=len, reverse=True)


# -- classes and functions

def tags_of(files):
    command = ["ctags", "--output-format=json", "--fields=+neSKZ", "--languages=C++", "--langmap=C++:.h.cc",
               "--kinds-C++=fpcsm", "-L", "-", "-o", "-"]
    listed = subprocess.run(command, input="\n".join(files), check=True, capture_output=True, text=True)
    return [json.loads(line) for line in listed.stdout.splitlines()]


def classes_of(tags):
    """{class: [methods, members]}, by its declaration; overloads count one by one."""
    known = {(tag.get("scope", "") + "::" if tag.get("scope") else "") + tag["name"]: [set(), set()]
             for tag in tags if tag["kind"] in ("class", "struct")}
    for tag in tags:
        scope = known.get(tag.get("scope"))
        # A lambda in a member's initializer has the class for its scope.
        if scope is None or tag["name"].startswith("__anon"):
            continue
        if tag["kind"] in ("prototype", "function"):
            # Declaration and definition name default values and parameters differently: their number counts.
            count = len(parameters_of(tag))
            scope[0].add((tag["name"], count, "const" if tag.get("signature", "").endswith("const") else ""))
        elif tag["kind"] == "member":
            scope[1].add(tag["name"])
    # The name that ctags gives to an unnamed namespace changes with the path of the file.
    return {re.sub(r"__anon\w+::", "", name): [len(methods), len(members)]
            for name, (methods, members) in known.items()}


def parameters_of(tag):
    text = tag.get("signature", "()")
    text = text[text.find("(") + 1:text.rfind(")")]
    depth, parameters, current = 0, [], ""
    for character in text:
        depth += character in "<([{"
        depth -= character in ">)]}"
        if character == "," and depth == 0:
            parameters.append(current)
            current = ""
        else:
            current += character
    if current.strip() not in ("", "void"):
        parameters.append(current)
    return parameters


def functions_of(tags):
    return [(tag["end"] - tag["line"] + 1, len(parameters_of(tag)), tag["path"], tag["line"], tag["name"])
            for tag in tags if tag["kind"] == "function" and "end" in tag]


def twice_in_a_folder(files):
    """Names of unnamed namespaces that two sources of one folder define: compiled together they would collide."""
    command = ["ctags", "--output-format=json", "--fields=+sSK", "--languages=C++", "--langmap=C++:.h.cc",
               "--kinds-C++=fcsgv", "-L", "-", "-o", "-"]
    listed = subprocess.run(command, input="\n".join(path for path in files if path.endswith(".cc")), check=True,
                            capture_output=True, text=True)
    found = collections.defaultdict(set)
    for tag in map(json.loads, listed.stdout.splitlines()):
        if re.search(r"__anon\w+$", tag.get("scope", "")) and not tag["name"].startswith("__anon"):
            types = tuple(re.sub(r"\W*\w+$", "", one) for one in parameters_of(tag)) if "signature" in tag else ()
            found[os.path.dirname(tag["path"]), tag["name"], types].add(tag["path"])
    return {(folder, name): sorted(paths) for (folder, name, _), paths in sorted(found.items()) if len(paths) > 1}


# -- comments

def comments_of(path):
    """(first line, text) of each block of full-line comments, and how many lines they take."""
    blocks, taken, text = [], 0, lines_of(path)
    previous = -2
    for number, line in enumerate(text):
        stripped = line.strip()
        if stripped.startswith("//"):
            taken += 1
            content = stripped.lstrip("/").strip()
            if previous == number - 1:
                blocks[-1][1] += " " + content
            else:
                blocks.append([number + 1, content])
            previous = number
    trailing = [[number + 1, match.group(1).strip()] for number, line in enumerate(text)
                if (match := re.search(r"[;,{})>]\s+//\s?(.*)$", line)) and not line.strip().startswith("//")
                and not re.match(r'}  // (namespace|extern "C")', line)]
    said = [block for block in blocks + trailing if not TO_A_TOOL.match(block[1])]
    return said, taken, sum(1 for line in text if line.strip())


def comment_figures(files):
    figures = collections.Counter()
    for path in files:
        blocks, taken, filled = comments_of(path)
        kind = "header" if path.endswith(".h") else "source"
        figures[kind + "_comment"] += taken
        figures[kind + "_lines"] += filled
        figures["comments"] += len(blocks)
        figures["rulers"] += sum(1 for _, text in blocks if text.startswith("----"))
        figures["openings"] += sum(1 for _, text in blocks if BAD_OPENING.match(text))
        figures["short"] += sum(1 for _, text in blocks if len(text.split()) <= 4)
    return figures


# -- what belongs to the ground floor

def strays(files):
    """How often code outside proto/os does what proto/os is for."""
    found = collections.Counter()
    for path in files:
        if path.startswith("proto/os/"):
            continue
        code = style_rules.without_literals("\n".join(lines_of(path)))
        found.update(what for what, _ in style_rules.os_calls(code))
    return found


# -- READMEs and the pages of docs/

def readme_figures():
    pages = {path: lines_of(path) for path in tracked(r"(^|/)README\.md$|^docs/.*\.md$")}
    return {
        f"READMEs over {LONG_README} lines": sum(1 for path, text in pages.items()
                                              if path.endswith("README.md") and len(text) > LONG_README),
        f"README lines over {WIDE_LINE} characters": sum(1 for text in pages.values()
                                                      for line in text if len(line) > WIDE_LINE),
    }


# -- the figures

def percentile(values, share):
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0


def cxx_files():
    return [path for path in tracked(r"\.(h|cc)$") if path.startswith(PRODUCT)]


def all_circles():
    """{kind: circles} of files and of folders, in C++ and in Python."""
    arrows = arrows_between_rooms(cxx_files())
    python = python_arrows([path for path in tracked(r"\.py$") if path.startswith(PRODUCT)])
    return {"files": circles(arrows), "folders": circles(folders_of(arrows)), "Python": circles(python)}


def large_classes():
    return {name: figure for name, figure in sorted(classes_of(tags_of(cxx_files())).items())
            if figure[0] > MOST_METHODS or figure[1] > MOST_MEMBERS}


def broken_structure():
    """One sentence for each circle, and for each name that would collide in a unity build."""
    found = [f"{kind} in a circle: {' '.join(circle)}" for kind, some in all_circles().items() for circle in some]
    found += [f"{name} is defined in the unnamed namespaces of {' and '.join(paths)}"
              for (_, name), paths in twice_in_a_folder(cxx_files()).items()]
    return found


def print_table():
    files = cxx_files()
    arrows = arrows_between_rooms(files)
    tags = tags_of(files)
    by_folder = collections.defaultdict(list)
    for path in files:
        by_folder[os.path.dirname(path)].append(path)
    print("| folder | rooms | arrows inside | lines | functions p50/p90/max | comment % h/s |\n|---|---|---|---|---|---|")
    functions = functions_of(tags)
    for folder, inside in sorted(by_folder.items()):
        rooms = {room_of(path) for path in inside}
        within = sum(1 for room in rooms for target in arrows[room] if os.path.dirname(target) == folder)
        sizes = sorted(one[0] for one in functions if os.path.dirname(one[2]) == folder)
        share = comment_figures(inside)
        percents = [100 * share[kind + "_comment"] // max(1, share[kind + "_lines"]) for kind in ("header", "source")]
        print(f"| `{folder}` | {len(rooms)} | {within} | {sum(len(lines_of(path)) for path in inside)} | "
              f"{percentile(sizes, .5)}/{percentile(sizes, .9)}/{max(sizes, default=0)} | {percents[0]}/{percents[1]} |")
    sizes = sorted(one[0] for one in functions)
    share = comment_figures(files)
    found = all_circles()
    classes = sorted(classes_of(tags).items(), key=lambda one: -one[1][0])
    test_files = [path for path in tracked(r"\.(h|cc|py)$") if path.startswith("tests/")]
    python = [path for path in tracked(r"\.py$") if path.startswith(PRODUCT)]
    outside = strays(files)
    readmes = readme_figures()
    print(f"""
| | figure |
|---|---|
| product, C++ lines (files) | {sum(len(lines_of(path)) for path in files)} ({len(files)}) |
| product, Python lines | {sum(len(lines_of(path)) for path in python)} |
| tests, lines of C++ and Python | {sum(len(lines_of(path)) for path in test_files)} |
| arrows between folders | {sum(len(targets) for targets in folders_of(arrows).values())} |
| circles of files, folders, Python modules (largest) | {', '.join(f"{len(one)} ({len(one[0]) if one else 0})" for one in found.values())} |
| largest classes (methods / members) | {', '.join(f"{name.replace('ivy::', '')} {a}/{b}" for name, (a, b) in classes[:6])} |
| functions p50/p90/max; over {LONG_FUNCTION} lines; over {MANY_PARAMETERS} parameters | {percentile(sizes, .5)}/{percentile(sizes, .9)}/{sizes[-1]}; {sum(1 for one in sizes if one > LONG_FUNCTION)}; {sum(1 for one in functions if one[1] > MANY_PARAMETERS)} of {len(functions)} |
| comments, headers and sources | {100 * share['header_comment'] // share['header_lines']} %, {100 * share['source_comment'] // share['source_lines']} % |
| comments that open with Of, Who, ...; of four words or fewer; rulers | {share['openings']}; {share['short']} of {share['comments']}; {share['rulers']} |
| outside `proto/os`: {', '.join(style_rules.OWNED_BY_OS)} | {', '.join(str(outside[name]) for name in style_rules.OWNED_BY_OS)} |
| {'; '.join(readmes)} | {'; '.join(str(figure) for figure in readmes.values())} |""")


def print_circles():
    arrows = arrows_between_rooms(cxx_files())
    for kind, graph in (("files", arrows), ("folders", folders_of(arrows))):
        for circle in circles(graph):
            print(f"{kind}: {' '.join(circle)}")
            for source in circle:
                for target in sorted(set(graph[source]) & set(circle)):
                    where = graph[source][target]
                    print(f"   {source} -> {target}  {len(where)}: {' '.join(where[:4])}")
    for circle in all_circles()["Python"]:
        print("Python:", " ".join(circle))


def print_subtracted():
    log = subprocess.run(["git", "log", "--no-merges", "--numstat", "--format=@%h %s", BEFORE_THE_FLOORS + "..HEAD"],
                         check=True, capture_output=True, text=True).stdout
    shrunk = []
    for commit in log.split("@")[1:]:
        subject, *files = [line for line in commit.splitlines() if line]
        counts = [line.split("\t") for line in files if line.count("\t") == 2]
        grown = sum(int(added) - int(gone) for added, gone, path in counts
                    if added != "-" and re.search(r"\.(cc|h|c|cu|def|inc|pyi?)\}?$", path) and path.startswith(PRODUCT))
        if grown < 0:
            shrunk.append((grown, subject))
    for grown, subject in sorted(shrunk):
        print(f"{grown:6} {subject[:100]}")
    print(f"{sum(grown for grown, _ in shrunk):6} lines in {len(shrunk)} commits")


def main():
    verb = sys.argv[1] if len(sys.argv) > 1 else ""
    if verb == "--circles":
        print_circles()
    elif verb == "--classes":
        for name, (methods, members) in large_classes().items():
            print(f"{name}: {methods} methods, {members} data members")
    elif verb == "--twice":
        for (_, name), paths in twice_in_a_folder(cxx_files()).items():
            print(f"{name}: {' '.join(paths)}")
    elif verb == "--subtracted":
        print_subtracted()
    elif verb == "--check":
        found = broken_structure()
        print("\n".join(found), end="\n" if found else "")
        return 1 if found else 0
    elif verb:
        print(__doc__)
        return 0 if verb in ("-h", "--help") else 2
    else:
        print_table()
    return 0


if __name__ == "__main__":
    sys.exit(main())
