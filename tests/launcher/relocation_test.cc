// SPDX-License-Identifier: Apache-2.0
#include "launcher/stage/relocation.h"

#include <gtest/gtest.h>

namespace ivy {
namespace {

using Words = std::vector<std::string>;

const StagedDirectories kDirectories{
    "/home/me/app/.venv", "/home/me/app/.venv/lib/python3.11/site-packages", "/home/me/app"};

TEST(RelocationTest, ReadsConfigurationOfVenvAndUv) {
  const VenvConfig venv = parse_venv_config(
      "home = /usr/bin\ninclude-system-site-packages = true\nversion = 3.11.2\n"
      "executable = /usr/bin/python3.11\n");
  EXPECT_EQ(venv.home, "/usr/bin");
  EXPECT_EQ(venv.version, "3.11.2");
  EXPECT_TRUE(venv.has_system_packages);
  EXPECT_FALSE(venv.is_by_uv);
  const VenvConfig uv = parse_venv_config(
      "home = /home/me/.local/share/uv/python/cpython-3.12.1-linux-x86_64-gnu/bin\n"
      "implementation = CPython\nuv = 0.5.1\nversion_info = 3.12.1\n"
      "include-system-site-packages = false\n");
  EXPECT_EQ(uv.version, "3.12.1");
  EXPECT_TRUE(uv.is_by_uv);
  EXPECT_FALSE(uv.has_system_packages);
  EXPECT_EQ(parse_venv_config("version_info = 3.9.1.final.0\r\n").version, "3.9.1");
  EXPECT_EQ(short_version("3.12.1"), "3.12");
  EXPECT_EQ(short_version("3.12"), "3.12");
}

TEST(RelocationTest, RunsScriptsByTheInterpreterNextToThem) {
  const std::string script = "#!/home/me/app/.venv/bin/python3\nimport sys\n";
  const auto changed = relocatable_script(script, kDirectories.prefix);
  ASSERT_TRUE(changed);
  EXPECT_EQ(changed->head,
            "#!/bin/sh\n'''exec' \"$(dirname -- \"$(realpath -- \"$0\")\")\"/'python3' \"$0\" "
            "\"$@\"\n' '''\n");
  EXPECT_EQ(script.substr(changed->skip), "import sys\n");
  const auto with_argument =
      relocatable_script("#! /home/me/app/.venv/bin/python -I\nx\n", kDirectories.prefix);
  ASSERT_TRUE(with_argument);
  EXPECT_NE(with_argument->head.find("/'python' -I \"$0\""), std::string::npos);
}

TEST(RelocationTest, RecognizesScriptsWithLongPaths) {
  const std::string plain =
      "#!/bin/sh\n'''exec' /home/me/app/.venv/bin/python3 \"$0\" \"$@\"\n' '''\nimport sys\n";
  const std::string quoted =
      "#!/bin/sh\n'''exec' \"/home/me/app/.venv/bin/python3\" \"$0\" \"$@\"\n' '''\nimport sys\n";
  for (const std::string& script : {plain, quoted}) {
    const auto changed = relocatable_script(script, kDirectories.prefix);
    ASSERT_TRUE(changed) << script;
    EXPECT_EQ(script.substr(changed->skip), "import sys\n");
    // The result is no longer recognized: it does not depend on the prefix.
    EXPECT_FALSE(relocatable_script(changed->head, kDirectories.prefix));
  }
}

TEST(RelocationTest, LeavesOtherScriptsAsTheyAre) {
  for (const char* script :
       {"#!/bin/sh\necho\n", "#!/usr/bin/env python3\n", "#!/home/me/app/.venv2/bin/python\n",
        "\x7f"
        "ELF",
        "", "#!/home/me/app/.venv/bin/python",
        "#!/bin/sh\n'''exec' /usr/bin/x \"$0\" \"$@\"\n' '''\n"})
    EXPECT_FALSE(relocatable_script(script, kDirectories.prefix)) << script;
}

TEST(RelocationTest, RewritesPathFiles) {
  const References inside = relocate_pth("/home/me/app/src\n", kDirectories);
  EXPECT_EQ(inside.text, "");
  EXPECT_EQ(inside.imports, Words{"src"});
  EXPECT_TRUE(inside.outside.empty());
  EXPECT_EQ(relocate_pth("/home/me/app", kDirectories).imports, Words{"."});
  const References own =
      relocate_pth("# comment\nimport x; x.f()\n/home/me/app/.venv/opt\nrelative\n", kDirectories);
  EXPECT_EQ(own.text, "# comment\nimport x; x.f()\n../../../opt\nrelative\n");
  EXPECT_TRUE(own.imports.empty());
  const References outside = relocate_pth("/home/me/lib/src\n", kDirectories);
  EXPECT_EQ(outside.outside, Words{"/home/me/lib/src"});
  EXPECT_EQ(outside.text, "");
}

TEST(RelocationTest, KeepsPathsToOtherDirectoriesWithoutAProject) {
  StagedDirectories alone = kDirectories;
  alone.project.clear();
  const References kept = relocate_pth("/home/me/lib/src\n", alone);
  EXPECT_EQ(kept.text, "/home/me/lib/src\n");
  EXPECT_TRUE(kept.outside.empty());
}

TEST(RelocationTest, ResolvesEditablePackagesByTheirNames) {
  const auto found = relocate_editable_finder(
      "import sys\n\nMAPPING: dict[str, str] = {'bar': '/home/me/app/bar', "
      "'a.b': '/home/me/app/lib/a/b', \"one\": '/home/me/app/one.py'}\nNAMESPACES = {}\n",
      kDirectories);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->imports, (Words{".", "lib"}));
  EXPECT_TRUE(found->outside.empty());
  const auto renamed = relocate_editable_finder(
      "\nMAPPING = {'bar': '/home/me/app/src', 'c': '/opt/c'}\n", kDirectories);
  ASSERT_TRUE(renamed);
  EXPECT_EQ(renamed->outside, (Words{"/home/me/app/src", "/opt/c"}));
  EXPECT_FALSE(relocate_editable_finder("MAPPINGS = 1", kDirectories));
  EXPECT_FALSE(relocate_editable_finder("\nMAPPING = {f('x'): 1}\n", kDirectories));
}

TEST(RelocationTest, FindsPathsInsideADirectory) {
  EXPECT_EQ(path_inside("/a/b/c", "/a/b"), "c");
  EXPECT_EQ(path_inside("/a/b/", "/a/b"), ".");
  EXPECT_EQ(path_inside("/a/bc", "/a/b"), std::nullopt);
  EXPECT_EQ(path_inside("/a/bc", ""), std::nullopt);
}

}  // namespace
}  // namespace ivy
