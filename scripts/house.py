#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how readable the code is, and finds dependency cycles.

    scripts/house.py                 compares this repository with the projects in scripts/house_beside.toml
    scripts/house.py --folders       lists the modules of each folder, and the modules with only one user
    scripts/house.py --of CHECKOUT   prints the profile of another project, as a section for house_beside.toml
    scripts/house.py --circles       prints each cycle with the includes or imports that close it
    scripts/house.py --check         fails if files, folders or Python modules depend on each other in a cycle, or if two
                                     sources of a folder define the same name in their unnamed namespaces

A module is a header with its source; including either one counts as a use. Tests are excluded, except in
one row about comments. universal-ctags (scripts/setup test) finds classes and functions; it does not count lambdas.
"""

import ast
import collections
import io
import json
import os
import re
import subprocess
import sys
import tokenize
import tomllib

import style_rules

PRODUCT = ("proto", "rendezvous", "comm", "agent", "launcher")
BESIDE = "scripts/house_beside.toml"
HEADERS, SOURCES = (".h", ".hh", ".hpp"), (".cc", ".cpp", ".c")
LANGUAGE = ["--languages=C++", "--langmap=C++:.h.hh.hpp.cc.cpp.c"]
NOT_PRODUCT = re.compile(r"(^|/)(tests?|testing|benchmarks?|bench|perf|examples?|demos|apps|issues|third_party)/|"
                         r"(_test|_perftest|_test_util|/test)\.\w+$")
TO_A_TOOL = re.compile(r"NOLINT|clang-format (off|on)$")  # Directives for tools do not count as comments.
RELATIVE_CLAUSE = re.compile(r"(What|Whatever|Where|Which|Who|Whom|Whose|Whoever|Those|The one that)\b")
CLAUSES = "comments with a sentence that opens with a relative clause"  # A row of the table.


def tracked(pattern):
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "-z"], check=True, capture_output=True)
    return sorted(path for path in listed.stdout.decode().split("\0")
                  if path and re.search(pattern, path) and os.path.isfile(path))


def lines_of(path):
    with open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read().splitlines()


# -- modules and arrows

def module_of(path):
    return path.rsplit(".", 1)[0]


def modules_of(files):
    """Returns {file: module}. A source without a header of its own belongs to the header of its name in include/, if there
    is exactly one."""
    headers = collections.defaultdict(list)
    for path in files:
        if path.startswith("include/"):
            headers[os.path.basename(module_of(path))].append(module_of(path))
    modules = {}
    for path in files:
        named_alike = headers[os.path.basename(module_of(path))]
        has_own = any(module_of(path) + ending in files for ending in HEADERS)
        modules[path] = named_alike[0] if len(named_alike) == 1 and not has_own else module_of(path)
    return modules


def own_includes(path, files):
    """Yields (line number, file) for each include of a file of the same project."""
    for number, line in enumerate(lines_of(path), 1):
        match = re.match(r'\s*#\s*include\s+(["<])([^">]+)[">]', line)
        if not match:
            continue
        quote, header = match.groups()
        above = ([os.path.dirname(path)] if quote == '"' else []) + ["", "include", "src"]
        places = [os.path.normpath(os.path.join(folder, header)) for folder in above]
        target = next((place for place in places if place in files), None)
        if target:
            yield number, target


def arrows_between_modules(files):
    """Returns {module: {included module: [file:line]}} for the project's own includes."""
    known = set(files)
    modules = modules_of(known)
    arrows = {module: collections.defaultdict(list) for module in modules.values()}
    for path in files:
        for number, target in own_includes(path, known):
            if modules[target] != modules[path]:
                arrows[modules[path]][modules[target]].append(f"{path}:{number}")
    return arrows


def users_of(arrows):
    """Returns {module: modules that include it}."""
    users = collections.defaultdict(set)
    for source, targets in arrows.items():
        for target in targets:
            users[target].add(source)
    return users


class PythonModules:
    """Python modules by dotted name. The module of a package is its __init__.py."""

    def __init__(self, files):
        self.modules = {}
        for path in files:
            name = path[:-3].replace("/", ".")
            self.modules[name.removesuffix(".__init__")] = module_of(path)
        # The folders that contain top-level packages, as dotted names.
        packages = {os.path.dirname(path) for path in files if path.endswith("/__init__.py")}
        self.roots = {os.path.dirname(package).replace("/", ".") for package in packages
                      if os.path.dirname(package) not in packages}

    def absolute(self, name):
        """Returns the dotted name from the repository's top, or None if the module is not part of this repository."""
        return next((f"{root}.{name}" for root in self.roots if f"{root}.{name}" in self.modules), None)

    def imported_by(self, path):
        """Yields (line, module) for each module of this repository that the file imports, by a statement or importlib."""
        tree = ast.parse("\n".join(lines_of(path)))
        own = path[:-3].replace("/", ".").removesuffix(".__init__")
        package = own if path.endswith("/__init__.py") else own.rpartition(".")[0]
        for node in ast.walk(tree):
            for name in self._names(node, tree, package):
                module = self.modules.get(name)
                if module and module != module_of(path):
                    yield node.lineno, module

    def _names(self, node, tree, package):
        if isinstance(node, ast.Import):
            return [self.absolute(alias.name) for alias in node.names]
        if isinstance(node, ast.ImportFrom):
            stem = self._stem(node, package)
            # `from package import name` imports a module of the package, or a name from its __init__.py.
            return [f"{stem}.{alias.name}" if f"{stem}.{alias.name}" in self.modules else stem for alias in node.names]
        if isinstance(node, ast.Call) and self._is_import_call(node) and node.args:
            return self._called(node.args[0], tree, package)
        return []

    def _stem(self, node, package):
        if not node.level:
            return self.absolute(node.module)
        above = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
        return f"{above}.{node.module}" if node.module else above

    @staticmethod
    def _is_import_call(node):
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        return name in ("import_module", "__import__")

    def _called(self, argument, tree, package):
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            if argument.value.startswith("."):
                return [package + argument.value.rstrip(".")]
            return [self.absolute(argument.value)]
        # The name is computed: consider every string in the file that names a module of this package.
        texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        return [f"{package}.{text}" for text in sorted(texts) if re.fullmatch(r"[\w.]+", text)]


def python_arrows(files):
    """Returns {module: {imported module: [file:line]}} for the repository's Python packages."""
    modules = PythonModules(files)
    arrows = {module_of(path): collections.defaultdict(list) for path in files}
    for path in files:
        for number, module in modules.imported_by(path):
            arrows[module_of(path)][module].append(f"{path}:{number}")
    return arrows


def folders_of(arrows):
    """Returns the arrows between modules as arrows between their folders."""
    result = collections.defaultdict(lambda: collections.defaultdict(list))
    for source, targets in arrows.items():
        result[os.path.dirname(source)]  # Adds an entry also for a folder without arrows.
        for target, where in targets.items():
            if os.path.dirname(source) != os.path.dirname(target):
                result[os.path.dirname(source)][os.path.dirname(target)] += where
    return result


def circles(arrows):
    """Returns the cycles: strongly connected components of more than one node (Tarjan 1972, without recursion)."""
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
    command = ["ctags", "--output-format=json", "--fields=+neSKZ", *LANGUAGE, "--kinds-C++=fpcsm", "-L", "-", "-o", "-"]
    listed = subprocess.run(command, input="\n".join(files), check=True, capture_output=True, text=True)
    return [json.loads(line) for line in listed.stdout.splitlines()]


def classes_of(tags):
    """Returns {class: [number of methods, number of members]}. Each overload counts as a method."""
    known = {(tag.get("scope", "") + "::" if tag.get("scope") else "") + tag["name"]: [set(), set()]
             for tag in tags if tag["kind"] in ("class", "struct")}
    for tag in tags:
        scope = known.get(tag.get("scope"))
        # Skip lambdas in member initializers: ctags reports the class as their scope.
        if scope is None or tag["name"].startswith("__anon"):
            continue
        if tag["kind"] in ("prototype", "function"):
            # Tell overloads apart by their number of parameters, because the declaration and the definition of one function
            # may differ in parameter names and default values.
            count = len(parameters_of(tag))
            scope[0].add((tag["name"], count, "const" if tag.get("signature", "").endswith("const") else ""))
        elif tag["kind"] == "member":
            scope[1].add(tag["name"])
    # Remove ctags's name for an unnamed namespace, which depends on the path of the file.
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


def function_lengths(tags):
    return sorted(tag["end"] - tag["line"] + 1 for tag in tags if tag["kind"] == "function" and "end" in tag)


def twice_in_a_folder(files):
    """Returns {(folder, name): files} for names that several sources of a folder define in unnamed namespaces. In a unity
    build these would collide."""
    command = ["ctags", "--output-format=json", "--fields=+sSK", *LANGUAGE, "--kinds-C++=fcsgv", "-L", "-", "-o", "-"]
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
    """Returns the comments (consecutive comment lines are one), the number of lines with only a comment, and the number of
    lines that are not empty."""
    blocks, taken, previous = [], 0, -2
    inside = False  # Inside a /* */ comment.
    for number, line in enumerate(lines_of(path)):
        stripped = line.strip()
        is_comment = inside or stripped.startswith(("//", "/*"))
        if not is_comment:
            behind = re.search(r"[;,{})>]\s+//\s?(.*)$", line)
            if behind and not re.match(r'}  // (namespace|extern "C")', stripped):
                blocks.append(behind.group(1).strip())
            continue
        if stripped.startswith("/*"):
            inside = True
        inside = inside and "*/" not in stripped
        taken += 1
        content = re.sub(r"^(//[/!]?<?|/\*+[!<]?|\*+/?)\s*|\s*\*/$", "", stripped)
        content = re.sub(r"^[@\\](brief|return|returns)\s+", "", content)
        if content.startswith("SPDX-License-Identifier"):
            continue
        if previous == number - 1 and blocks:
            blocks[-1] = f"{blocks[-1]} {content}".strip()
        else:
            blocks.append(content)
        previous = number
    kept = [block for block in blocks if block and not TO_A_TOOL.match(block)
            and not re.search(r"Copyright|SPDX-License|@file", block)]
    return kept, taken, sum(1 for line in lines_of(path) if line.strip())


def comment_figures(files):
    figures = collections.Counter()
    for path in files:
        blocks, taken, filled = comments_of(path)
        kind = "header" if path.endswith(HEADERS) else "source"
        figures[kind + "_comment"] += taken
        figures[kind + "_lines"] += filled
        figures["comments"] += len(blocks)
        figures["clauses"] += sum(map(opens_with_a_clause, blocks))
    return figures


def opens_with_a_clause(comment):
    # Check every sentence, because rewrites tend to improve only the first one.
    return any(map(RELATIVE_CLAUSE.match, re.split(r"[.:;?!] +", comment)))


def python_comments_of(path):
    """Returns the comments (consecutive comment lines are one) and the docstrings, each on one line."""
    text = "\n".join(lines_of(path)) + "\n"
    blocks, previous = [], -2
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        content, number = token.string.lstrip("#! "), token.start[0]
        if previous == number - 1:
            blocks[-1] += " " + content
        else:
            blocks.append(content)
        previous = number
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    blocks += [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(text)) if isinstance(node, documented)]
    kept = (" ".join(block.split()) for block in blocks)
    return [block for block in kept if block and not re.match(r"SPDX|usr/bin/env|noqa", block)]


def test_clauses(ending, comments_in):
    """Returns the share of the tests' comments with a sentence that opens with a relative clause."""
    comments = [comment for path in tracked(ending) if path.startswith("tests/") for comment in comments_in(path)]
    return percent(sum(map(opens_with_a_clause, comments)), len(comments))


# -- the profile

def percentile(values, share):
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0


def spread(values):
    values = sorted(values)
    return f"{percentile(values, .5)} / {percentile(values, .9)} / {values[-1] if values else 0}"


def histogram(values, edges):
    """Returns the number of values in each interval between two edges, below the first edge, and from the last edge on."""
    counts = [0] * (len(edges) + 1)
    for value in values:
        counts[sum(value >= edge for edge in edges)] += 1
    return " ".join(map(str, counts))


def percent(part, whole):
    return f"{100 * part / max(1, whole):.1f} %"


def profile(files):
    """Returns {figure: text} of one project."""
    headers = [path for path in files if path.endswith(HEADERS)]
    length = {path: len(lines_of(path)) for path in files}
    known, tags = set(files), tags_of(files)
    modules, users, classes = modules_of(known), users_of(arrows_between_modules(files)), classes_of(tags).values()
    shared = {modules[path] for path in headers}
    callbacks = sum(style_rules.without_literals("\n".join(lines_of(path))).count("std::function<") for path in headers)
    comments = comment_figures(files)
    return {
        "lines (files)": f"{sum(length.values())} ({len(files)})",
        "lines of a header, p50 / p90 / longest": spread(length[path] for path in headers),
        "lines of a source, p50 / p90 / longest": spread(length[path] for path in files if path not in headers),
        "lines of a function, p50 / p90 / longest": spread(function_lengths(tags)),
        "modules with a header; with one user":
            f"{len(shared)}; {percent(sum(len(users[module]) == 1 for module in shared), len(shared))}",
        "own includes of a file, p50 / p90 / most": spread(len(set(target for _, target in own_includes(path, known)))
                                                           for path in files),
        "std::function per 1,000 header lines": f"{1000 * callbacks / max(1, sum(length[path] for path in headers)):.1f}",
        "classes by methods: 0-9 10-19 20-29 30-39 40+": histogram((one[0] for one in classes), (10, 20, 30, 40)),
        "classes by data members: 0-4 5-9 10-19 20-29 30+": histogram((one[1] for one in classes), (5, 10, 20, 30)),
        "comment lines in headers, in sources": ", ".join(
            percent(comments[kind + "_comment"], comments[kind + "_lines"]) for kind in ("header", "source")),
        CLAUSES: percent(comments["clauses"], comments["comments"]),
    }


def cxx_files():
    return [path for path in tracked(r"\.(h|cc)$") if path.startswith(PRODUCT)]


def python_files():
    return [path for path in tracked(r"\.py$") if path.startswith(PRODUCT)]


def print_table():
    with open(BESIDE, "rb") as stream:
        beside = tomllib.load(stream)
    columns = {"here": profile(cxx_files()), **beside}
    print("| | " + " | ".join(columns) + " |\n|" + "---|" * (len(columns) + 1))
    for figure in columns["here"]:
        print(f"| {figure} | " + " | ".join(str(column.get(figure, "")) for column in columns.values()) + " |")
    print(f"| {CLAUSES}, in tests: C++, Python | {test_clauses(r'[.](h|cc|c)$', lambda path: comments_of(path)[0])}, "
          f"{test_clauses(r'[.]py$', python_comments_of)} |" + " |" * len(beside))
    print("| commit | | " + " | ".join(column["commit"] for column in beside.values()) + " |")


def print_section(checkout):
    os.chdir(checkout)
    files = [path for path in tracked(r"\.(h|hh|hpp|cc|cpp)$") if not NOT_PRODUCT.search(path)]
    commit = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    print(f'[{os.path.basename(os.getcwd())}]\ncommit = "{commit[:12]}"')
    for figure, text in profile(files).items():
        print(f'"{figure}" = "{text}"')


def print_folders():
    files = cxx_files()
    arrows = arrows_between_modules(files)
    users = users_of(arrows)
    print("| folder | modules | lines | with one user |\n|---|---|---|---|")
    for folder in sorted({os.path.dirname(module) for module in arrows}):
        modules = [module for module in arrows if os.path.dirname(module) == folder]
        lines = sum(len(lines_of(path)) for path in files if os.path.dirname(path) == folder)
        single = [os.path.basename(module) for module in modules if len(users[module]) == 1]
        print(f"| `{folder}` | {len(modules)} | {lines} | {len(single)}: {' '.join(single)} |")


# -- cycles

def graphs():
    """Returns {kind: arrows}: between C++ files, between their folders, and between Python modules."""
    arrows = arrows_between_modules(cxx_files())
    return {"files": arrows, "folders": folders_of(arrows), "Python modules": python_arrows(python_files())}


def broken_structure():
    """Returns a sentence for each cycle, and for each name that would collide in a unity build."""
    found = [f"{kind} in a circle: {' '.join(circle)}" for kind, graph in graphs().items() for circle in circles(graph)]
    found += [f"{name} is defined in the unnamed namespaces of {' and '.join(paths)}"
              for (_, name), paths in twice_in_a_folder(cxx_files()).items()]
    return found


def print_circles():
    for kind, graph in graphs().items():
        for circle in circles(graph):
            print(f"{kind}: {' '.join(circle)}")
            for source in circle:
                for target in sorted(set(graph[source]) & set(circle)):
                    where = graph[source][target]
                    print(f"   {source} -> {target}  {len(where)}: {' '.join(where[:4])}")


def main():
    verb, *rest = sys.argv[1:] or [""]
    if verb == "--check":
        found = broken_structure()
        print("\n".join(found), end="\n" if found else "")
        return 1 if found else 0
    if verb == "--of" and len(rest) == 1:
        print_section(rest[0])
    elif verb == "--folders":
        print_folders()
    elif verb == "--circles":
        print_circles()
    elif verb:
        print(__doc__)
        return 0 if verb in ("-h", "--help") else 2
    else:
        print_table()
    return 0


if __name__ == "__main__":
    sys.exit(main())
